/// @file
/// Microbenchmarks of a user's own communicators and rules; needs Google Benchmark (zero::bench).
#pragma once

#include "zero/bench/collectives.hpp"
#include "zero/bench/rule_bench.hpp"
