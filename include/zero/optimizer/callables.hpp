/// @file
/// What a trainer's functions are called with, whatever their types.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/function_ref.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/api/held_array.hpp"
#include "zero/optimizer/held/elements.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a trainer loads apart from each other.
enum class Content : std::uint8_t {
  numbers,  ///< of which parameters and masters are made
  bytes     ///< of opaque tensors, as they are
};
/// What fills elements [first, first + count) of a tensor: float, or double where masters are; of
/// an opaque tensor its own.
using ValueSource = FunctionRef<void(Tensor const&, std::size_t first, Elements)>;

/// Elements [first, first + count) of a tensor that this rank updates.
struct OwnedRun {
  Tensor const* tensor;
  std::size_t first;
  std::size_t count;
  void* master;
  std::span<void* const> states;  ///< one for each array of the rule
  std::size_t kind = 0;           ///< whose types these are
};
/// What is shown them, or fills them in.
using OwnedVisitor = FunctionRef<void(OwnedRun const&)>;
/// What is shown the same array by array, in the form in which it is saved, or fills that in.
using HeldVisitor = FunctionRef<void(Tensor const&, HeldArray const&, std::span<std::byte>)>;

/// Elements [first, first + count) of a tensor, of whose reduced gradients this rank has them.
struct GradientRun {
  Tensor const* tensor;
  std::size_t first;
  std::size_t count;
  void* gradients;   ///< in the memory of the space
  double scale;      ///< what makes them the mean
  std::size_t kind;  ///< whose types these are
};
/// What is shown them, or changes them.
using GradientVisitor = FunctionRef<void(GradientRun const&)>;

}  // namespace zero::inline ZERO_NAMESPACE::detail
