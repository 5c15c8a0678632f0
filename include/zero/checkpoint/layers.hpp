/// @file
/// Layers of stacked tensors: what a checkpoint has of a whole tensor as one of its layer, and what
/// it has of all layers as one of the whole.
#pragma once

#include "zero/base/config.hpp"
#include "zero/checkpoint/boxes.hpp"
#include "zero/checkpoint/catalog.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Calls `visit(run, before)` for the saved runs of elements [first, first + count), cut to them;
/// `before` of these elements lie before the run.
template <class Visit>
void for_each_piece(SavedArray const& saved,
                    std::uint64_t first,
                    std::uint64_t count,
                    Visit&& visit) {
  std::uint64_t const end = first + count;
  auto at = std::partition_point(saved.runs.begin(), saved.runs.end(), [&](SavedRun const& run) {
    return run.first + run.count <= first;
  });
  for (; at != saved.runs.end() && at->first < end; ++at) {
    std::uint64_t const begin = (std::max)(at->first, first);
    std::uint64_t const last = (std::min)(at->first + at->count, end);
    SavedRun piece = *at;
    piece.offset += (begin - at->first) * size_of(saved.dtype);
    piece.first = begin;
    piece.count = last - begin;
    visit(piece, begin - first);
  }
}

/// One layer of a tensor that was saved whole.
/// @param layer  less than the tensor's first dimension
[[nodiscard]] inline CatalogTensor layer_of(CatalogTensor const& whole, std::uint64_t layer) {
  CatalogTensor one{.about = whole.about, .rule = whole.rule};
  one.about.shape.erase(one.about.shape.begin());
  std::uint64_t const elements = volume(one.about.shape);
  for (auto const& [name, saved] : whole.arrays) {
    SavedArray& array = one.arrays[name];
    array.dtype = saved.dtype;
    for_each_piece(saved, layer * elements, elements, [&](SavedRun run, std::uint64_t before) {
      run.first = before;
      array.runs.push_back(run);
    });
  }
  return one;
}

/// What keeps layers from being one tensor, in words; empty if nothing does.
/// @param states  whether their states are to be those of one tensor as well
[[nodiscard]] inline std::string_view problem_of_layers(
    std::span<CatalogTensor const* const> layers, bool states) {
  CatalogTensor const& first = *layers.front();
  for (CatalogTensor const* const layer : layers) {
    if (layer->about.shape != first.about.shape) return "have different shapes";
    if (layer->about.frozen != first.about.frozen) return "are not all frozen";
    if (states && layer->about.steps != first.about.steps) return "have different numbers of steps";
    if (states && layer->rule != first.rule) return "are of different rules";
    for (auto const& [name, array] : layer->arrays) {
      auto const other = first.arrays.find(name);
      if (other == first.arrays.end()) return "have different states";
      if (other->second.dtype != array.dtype) return "have different types";
    }
  }
  return {};
}

/// The tensor that these are the layers of.
/// @param layers  without a problem, and no more elements in all than can be counted
[[nodiscard]] inline CatalogTensor whole_of(std::span<CatalogTensor const* const> layers) {
  CatalogTensor whole{.about = layers.front()->about, .rule = layers.front()->rule};
  std::uint64_t const elements = volume(whole.about.shape);
  whole.about.shape.insert(whole.about.shape.begin(), layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    for (auto const& [name, saved] : layers[i]->arrays) {
      SavedArray& array = whole.arrays[name];
      array.dtype = saved.dtype;
      for (SavedRun run : saved.runs) {
        run.first += i * elements;
        array.runs.push_back(run);
      }
    }
  }
  return whole;
}

}  // namespace zero::inline ZERO_NAMESPACE::detail
