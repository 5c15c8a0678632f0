/// @file
/// Tensors of which one description serves all layers, taken apart.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"
#include "zero/layout/name_index.hpp"
#include "zero/layout/tensor.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE {

/// A tensor or, of a stacked one, what one unit has of it.
struct Slice {
  std::size_t described = 0;  ///< index into the described tensors
  std::uint64_t first = 0;    ///< its first element there
};

/// The tensors that units have, in the order of the descriptions.
struct Slices {
  /// Slice i of a stacked tensor is a tensor of unit `unit + i`, with the name of that layer.
  std::vector<Tensor> tensors{};
  std::vector<Slice> of{};  ///< where each of them is from
};

/// What layer i of a stacked tensor is called: "name[i]".
[[nodiscard]] inline std::string name_of_layer(std::string_view name, std::uint64_t layer) {
  return Message({name, "[", layer, "]"}).text();
}

/// Takes stacked tensors apart; others are as they are described.
/// @throws Error (invalid_argument) for stacked tensors without a first dimension, names that are
///   used twice, and ties between a stacked tensor and one that is not
ZERO_APART [[nodiscard]] ZERO_COLD Slices take_apart(std::vector<Tensor> const& described);

#if ZERO_BODIES

ZERO_BODY Slices take_apart(std::vector<Tensor> const& described) {
  Slices slices;
  bool any = false;
  for (Tensor const& tensor : described) any = any || tensor.stacked;
  std::optional<detail::NameIndex> index;
  if (any) index.emplace(described);
  for (std::size_t d = 0; d < described.size(); ++d) {
    Tensor const& whole = described[d];
    auto const refuse = [&](Message const& why) {
      fail(ErrorKind::invalid_argument, {"tensor '", whole.name, "' ", why});
    };
    if (any && index->find(described, whole.name) < d) refuse("is described twice");
    std::size_t const earlier = any ? index->find(described, whole.tied_to) : d;
    Tensor const* const target = earlier < d ? &described[earlier] : nullptr;
    if (target != nullptr && target->stacked != whole.stacked) {
      refuse({"is tied to '", whole.tied_to, "', but only one of them is stacked"});
    }
    if (!whole.stacked) {
      slices.tensors.push_back(whole);
      slices.of.push_back({d, 0});
      continue;
    }
    if (whole.name.empty()) fail(ErrorKind::invalid_argument, {"tensor ", d, " has no name"});
    if (whole.shape.empty() || whole.shape.front() == 0) {
      refuse("is stacked, so its first dimension is the number of layers, at least 1");
    }
    if (target != nullptr && target->shape != whole.shape) {
      refuse({"is tied to '", whole.tied_to, "', which has another shape"});
    }
    std::size_t const layers = whole.shape.front();
    if (layers > std::size_t{1} << 20) refuse({"is stacked over ", layers, " layers, over 2^20"});
    Tensor slice = whole;
    slice.stacked = false;
    slice.shape.erase(slice.shape.begin());
    std::uint64_t const count = element_count(slice);
    for (std::size_t i = 0; i < layers; ++i) {
      slice.name = name_of_layer(whole.name, i);
      if (!whole.tied_to.empty()) slice.tied_to = name_of_layer(whole.tied_to, i);
      slice.unit = whole.unit + static_cast<int>(i);
      slices.tensors.push_back(slice);
      slices.of.push_back({d, i * count});
    }
  }
  return slices;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE
