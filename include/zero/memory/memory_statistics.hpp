/// @file
/// What is in use of a reservation, what is free, and in how many pieces.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/plan.hpp"

#include <cstdint>
#include <string>

namespace zero::inline ZERO_NAMESPACE {

/// One end of a reservation.
struct LifetimeStatistics {
  std::uint64_t live_bytes = 0;  ///< in use, as asked for
  /// From the end of the reservation to the innermost block in use, free blocks between included.
  std::uint64_t extent_bytes = 0;
  friend constexpr bool operator==(LifetimeStatistics const&, LifetimeStatistics const&) = default;
};

/// A reservation. What is neither live nor free is rounding.
struct MemoryStatistics {
  std::uint64_t reserved_bytes = 0;      ///< taken from the allocator
  std::uint64_t live_bytes = 0;          ///< in use at both ends, as asked for
  std::uint64_t peak_bytes = 0;          ///< the most that `live_bytes` has been
  std::uint64_t free_bytes = 0;          ///< in all free blocks
  std::uint64_t largest_free_block = 0;  ///< bytes of the largest one
  /// Bytes of the smallest reservation in which the same calls would have succeeded, as long as
  /// none asked for an alignment of more than 4096.
  std::uint64_t needed_bytes = 0;
  LifetimeStatistics long_lived{};   ///< from the first byte upwards
  LifetimeStatistics short_lived{};  ///< from the last byte downwards

  /// The share of free memory outside of the largest free block; 0 where nothing is free.
  [[nodiscard]] constexpr double fragmentation() const noexcept {
    if (free_bytes == 0) return 0.;
    return static_cast<double>(free_bytes - largest_free_block) / static_cast<double>(free_bytes);
  }
  friend constexpr bool operator==(MemoryStatistics const&, MemoryStatistics const&) = default;
};

/// The statistics in two lines for people; ends with a newline.
[[nodiscard]] ZERO_COLD inline std::string to_string(MemoryStatistics const& statistics) {
  auto const units = [](std::uint64_t bytes) { return detail::in_binary_units(bytes); };
  auto const end = [&](LifetimeStatistics const& one) {
    return units(one.live_bytes) + " (extent " + units(one.extent_bytes) + ")";
  };
  std::uint64_t const scattered = statistics.free_bytes - statistics.largest_free_block;
  return "memory: " + units(statistics.live_bytes) + " live (peak " + units(statistics.peak_bytes) +
         ") of " + units(statistics.reserved_bytes) + ", " + units(statistics.free_bytes) +
         " free, largest block " + units(statistics.largest_free_block) + ", fragmentation " +
         (scattered == 0 ? "0.0%" : detail::percentage(scattered, statistics.free_bytes)) +
         ", needed " + units(statistics.needed_bytes) + "\n  long-lived " +
         end(statistics.long_lived) + ", short-lived " + end(statistics.short_lived) + "\n";
}

}  // namespace zero::inline ZERO_NAMESPACE
