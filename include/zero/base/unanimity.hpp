/// @file
/// Whether ranks bring the same number, told by sums.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Whether ranks bring the same 64 bits, told by sums: every rank finds the same answer, and for
/// more ranks it costs a rank no more.
///
/// Each part of 16 bits is added up, and so is its square: N times the sum of the squares is the
/// square of the sum exactly where all parts are equal. Exact up to 2^31 ranks.
struct Unanimity {
  static constexpr std::size_t parts = 4;
  static constexpr std::size_t word_count = 2 * parts;

  /// Writes the words that one rank adds.
  ZERO_HOST_DEVICE static void write(std::uint64_t value, std::int64_t* words) noexcept {
    for (std::size_t i = 0; i < parts; ++i) {
      auto const part = static_cast<std::int64_t>(value >> (16 * i) & 0xffffu);
      words[2 * i] = part;
      words[2 * i + 1] = part * part;
    }
  }
  /// Of the sums over so many ranks.
  [[nodiscard]] ZERO_HOST_DEVICE static bool holds(std::int64_t const* sums,
                                                   std::int64_t ranks) noexcept {
    bool same = true;
    ZERO_UNROLL(1)
    for (std::size_t i = 0; i < parts; ++i) {
      std::int64_t const each = sums[2 * i] / ranks;
      same = same && each * ranks == sums[2 * i] && each * each * ranks == sums[2 * i + 1];
    }
    return same;
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
