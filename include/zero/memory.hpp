/// @file
/// Memory without fragmentation: one reservation with an end for what lives long, and one for what
/// does not. Needs the standard library only; zero.hpp does not include it.
#pragma once

#include "zero/memory/contiguous_memory.hpp"
#include "zero/memory/memory_statistics.hpp"
