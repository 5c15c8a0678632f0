/// @file
/// What a thread does with the global operator new, which heap_test.cpp replaces for this program.
#pragma once

#include <cstdint>

namespace heap {

/// Of the calling thread, since it began. Memory that one thread allocates and another frees counts
/// for the one and against the other.
struct Counts {
  std::uint64_t allocations = 0;
  std::int64_t live_bytes = 0;
  std::int64_t peak_bytes = 0;  ///< the most that was live since the last `reset_peak`
};

[[nodiscard]] Counts mine() noexcept;

/// Lets the peak begin anew, from what is live now.
void reset_peak() noexcept;

}  // namespace heap
