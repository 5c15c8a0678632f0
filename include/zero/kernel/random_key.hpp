/// @file
/// What tells the random bits of one array from those of all others.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/hash.hpp"
#include "zero/kernel/element_hash.hpp"

#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// The next of a chain of words that make a key.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t key_with(std::uint64_t key,
                                                                std::uint64_t word) noexcept {
  return stir((key ^ word) + 0x9e3779b97f4a7c15u);
}

}  // namespace detail

/// What a tensor is known by: the same on all ranks and in all stages.
/// @param tensor  its name; of a slice, the name of its stack
/// @param part    0, or where an axis of the model cuts the tensor, 1 and more: which part it is
[[nodiscard]] inline std::uint64_t random_key(std::string_view tensor,
                                              std::uint64_t part) noexcept {
  zero::detail::Hash name;
  name.add(tensor.data(), tensor.size());
  return detail::key_with(detail::key_with(0, name.value()), part);
}

/// What an array of a tensor is known by: another number for each tensor, part and array. Two are
/// equal by chance only, once in 2^64.
/// @param tensor  `random_key` of it and its part
/// @param array   0 for masters, then 1 for the rule's first state, and so on
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint64_t random_key(std::uint64_t tensor,
                                                                  std::uint64_t array) noexcept {
  return detail::key_with(tensor, array);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
