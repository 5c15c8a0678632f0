/// @file
/// The public benchmarking tools, as our own programs call them.
#pragma once

#include "zero/bench/stream.hpp"

namespace bench {
using namespace zero::bench;
}  // namespace bench
