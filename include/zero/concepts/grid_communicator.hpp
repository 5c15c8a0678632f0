/// @file
/// Ranks on two axes: what an optimizer asks of a grid for tensor parallelism.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"

#include <concepts>

namespace zero::inline ZERO_NAMESPACE {

/// Three groups of one rank, which have the same type: all ranks; the data axis, whose ranks have
/// the same part of the model and other data; the model axis, whose ranks have other parts of the
/// model and the same data. Every rank is in the product of the two axes once.
template <class G>
concept ProcessGrid = requires(G& grid) {
  requires Communicator<typename G::Communicator>;
  { grid.world() } -> std::same_as<typename G::Communicator&>;
  { grid.data() } -> std::same_as<typename G::Communicator&>;
  { grid.model() } -> std::same_as<typename G::Communicator&>;
};

}  // namespace zero::inline ZERO_NAMESPACE
