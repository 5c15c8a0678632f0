/// @file
/// The clock by which benchmarks are timed.
#pragma once

#include "zero/base/config.hpp"

#include <chrono>

/// Microbenchmarks of a user's own communicators and rules; see examples/bench/README.md.
namespace zero::inline ZERO_NAMESPACE::bench {

/// Seconds on a clock that only goes forward.
[[nodiscard]] inline double seconds_now() {
  auto const now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
