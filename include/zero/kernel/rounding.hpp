/// @file
/// One element from one type to another, rounded once.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"

#include <bit>
#include <concepts>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// fp64 to fp32, keeping an inexact result odd: rounding the result once more, to a type narrower
/// by at least two bits, then gives what rounding the fp64 value directly would have given.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr float round_to_odd(
    double value) noexcept {
  auto const nearest = static_cast<float>(value);
  auto const back = static_cast<double>(nearest);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  bool const inexact = back < value || back > value;
  bool const too_small = value < 0 ? back > value : back < value;
  if (inexact && bits % 2 == 0) bits = too_small ? bits + 1 : bits - 1;
  return std::bit_cast<float>(bits);
}

template <class To, class From>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr To convert(From value) noexcept {
  constexpr bool to_number = std::is_arithmetic_v<To>;
  if constexpr (std::same_as<To, From>) {
    return value;
  } else if constexpr (to_number && std::is_arithmetic_v<From>) {
    return static_cast<To>(value);
  } else if constexpr (to_number) {
    return static_cast<To>(static_cast<float>(value));
  } else if constexpr (std::same_as<From, double>) {
    return static_cast<To>(round_to_odd(value));
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

}  // namespace detail

/// What elements of these types are computed in: double if one of them is, else float.
template <class... T>
using RealOf = std::conditional_t<(std::same_as<T, double> || ...), double, float>;

}  // namespace zero::inline ZERO_NAMESPACE::kernel
