/// @file
/// Activation checkpoints: what stays of a block between its forward and its backward pass where
/// the latter computes everything else again.
#pragma once

#include <span>

namespace gpt {

/// Where the inputs of blocks wait for the backward pass. All model-parallel ranks have the same
/// inputs and call in the same order, so that they may share the work of holding them.
template <class Real>
class BlockInputs {
 public:
  virtual ~BlockInputs() = default;

  /// Copies the input of one block: layer by layer from 0 in each forward pass.
  virtual void store(int layer, std::span<Real const> input) = 0;

  /// What was stored last for that layer, valid until the next call: once for each, from the last
  /// layer down to 0.
  [[nodiscard]] virtual std::span<Real const> fetch(int layer) = 0;
};

}  // namespace gpt
