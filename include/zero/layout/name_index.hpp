/// @file
/// Finds tensors by name.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/hash.hpp"
#include "zero/layout/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Where the tensors of a list are, by name: a table of their numbers, about a quarter of it empty,
/// so that a search takes as long in a list of any length.
class NameIndex {
 public:
  ZERO_APART ZERO_COLD explicit NameIndex(std::vector<Tensor> const& tensors);
  /// The number of the first tensor of that name, or that of all tensors.
  /// @param tensors  those that it was made of
  ZERO_APART [[nodiscard]] std::size_t find(std::vector<Tensor> const& tensors,
                                            std::string_view name) const noexcept;

 private:
  /// The place of a name: its tensor's, or an empty one.
  ZERO_APART [[nodiscard]] std::size_t place_of(std::vector<Tensor> const& tensors,
                                                std::string_view name) const noexcept;

  /// In each place that of a tensor, or that of all of them. 2^32 tensors would be 600 GB.
  std::vector<std::uint32_t> numbers_;
};

#if ZERO_BODIES

ZERO_BODY NameIndex::NameIndex(std::vector<Tensor> const& tensors)
    : numbers_(tensors.size() + tensors.size() / 3 + 1,
               static_cast<std::uint32_t>(tensors.size())) {
  std::uint32_t const all = numbers_.front();
  for (std::uint32_t t = 0; t < all; ++t) {
    std::uint32_t& number = numbers_[place_of(tensors, tensors[t].name)];
    if (number == all) number = t;
  }
}

ZERO_BODY std::size_t NameIndex::place_of(std::vector<Tensor> const& tensors,
                                          std::string_view name) const noexcept {
  Hash hash;
  hash.add(name);
  auto at = static_cast<std::size_t>(hash.value() % numbers_.size());
  while (numbers_[at] != tensors.size() && tensors[numbers_[at]].name != name) {
    at = at + 1 == numbers_.size() ? 0 : at + 1;
  }
  return at;
}

ZERO_BODY std::size_t NameIndex::find(std::vector<Tensor> const& tensors,
                                      std::string_view name) const noexcept {
  return numbers_[place_of(tensors, name)];
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
