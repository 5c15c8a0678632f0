/// @file
/// Numbers that look random and depend on nothing but what is asked for: the same on every machine.
#pragma once

#include "support/standard.hpp"

/// A number's bits, mixed so that neighbours have nothing in common (splitmix64).
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t bits) noexcept {
  bits += 0x9e3779b97f4a7c15u;
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ bits >> 27) * 0x94d049bb133111ebu;
  return bits ^ bits >> 31;
}

/// One number of several keys.
template <class... Keys>
[[nodiscard]] constexpr std::uint64_t mixed(std::uint64_t first,
                                            std::uint64_t second,
                                            Keys... more) {
  return mixed(mixed(first) ^ second, static_cast<std::uint64_t>(more)...);
}
