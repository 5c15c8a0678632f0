/// @file
/// A hash of arrays that does not depend on the order in which elements are met.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// One to one, and far apart for neighbours: the finalizer of splitmix64.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t stir(std::uint64_t x) noexcept {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// An integer as wide as an element.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) <= 2,
                                  std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint16_t>,
                                  std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>>;

/// The representation of an element.
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t bits_of(T const& value) noexcept {
  return __builtin_bit_cast(BitsOf<T>, value);
}

}  // namespace detail

/// Of one element, by its bits, and its place.
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t element_hash(T const& value,
                                                                    std::uint64_t place) noexcept {
  return detail::stir(detail::stir(place + 0x9e3779b97f4a7c15u) ^ detail::bits_of(value));
}

/// hash += the hashes of x[i] at place first + i. Integers: the sum of parts is that of the whole.
template <class T>
void add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) noexcept {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += element_hash(x[i], first + i);
  *hash += sum;
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
