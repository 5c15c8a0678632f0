/// @file
/// What a trainer's functions are called with, whatever their types.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/held/elements.hpp"

#include <cstddef>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What fills elements [first, first + count) of a tensor: float, or double where masters are.
using ValueSource = FunctionRef<void(Tensor const&, std::size_t first, Elements)>;

/// Elements [first, first + count) of a tensor that this rank updates.
struct OwnedRun {
  Tensor const* tensor;
  std::size_t first;
  std::size_t count;
  void* master;
  std::span<void* const> states;  ///< one for each array of the rule
};
/// What is shown them, or fills them in.
using OwnedVisitor = FunctionRef<void(OwnedRun const&)>;

/// Elements [first, first + count) of a tensor, of whose reduced gradients this rank has them.
struct GradientRun {
  Tensor const* tensor;
  std::size_t first;
  std::size_t count;
  void* gradients;  ///< in the memory of the space
  double scale;     ///< what makes them the mean
};
/// What is shown them, or changes them.
using GradientVisitor = FunctionRef<void(GradientRun const&)>;

}  // namespace zero::inline ZERO_NAMESPACE::detail
