/// @file
/// Units of memory and integer arithmetic that cannot wrap.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace zero::inline ZERO_NAMESPACE {

/// 1024 bytes.
inline constexpr std::size_t KiB = std::size_t{1} << 10;
/// 1024 KiB.
inline constexpr std::size_t MiB = std::size_t{1} << 20;
/// 1024 MiB.
inline constexpr std::size_t GiB = std::size_t{1} << 30;

/// a + b.
/// @throws Error (invalid_argument) if the sum does not fit
[[nodiscard]] constexpr std::uint64_t checked_add(std::uint64_t a, std::uint64_t b) {
  if (a > (std::numeric_limits<std::uint64_t>::max)() - b) {
    fail(ErrorKind::invalid_argument, "a size does not fit in 64 bits (addition overflows)");
  }
  return a + b;
}

/// a * b.
/// @throws Error (invalid_argument) if the product does not fit
[[nodiscard]] constexpr std::uint64_t checked_mul(std::uint64_t a, std::uint64_t b) {
  if (b != 0 && a > (std::numeric_limits<std::uint64_t>::max)() / b) {
    fail(ErrorKind::invalid_argument, "a size does not fit in 64 bits (multiplication overflows)");
  }
  return a * b;
}

/// The number of groups of `unit` that hold `value`.
[[nodiscard]] constexpr std::uint64_t ceil_div(std::uint64_t value, std::uint64_t unit) noexcept {
  return value / unit + (value % unit != 0 ? 1 : 0);
}

/// `value` rounded up to a multiple of `unit`.
/// @throws Error (invalid_argument) if the result does not fit
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return checked_mul(ceil_div(value, unit), unit);
}

}  // namespace zero::inline ZERO_NAMESPACE
