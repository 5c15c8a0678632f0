/// @file
/// How a trainer describes its model: plain data, no tensor class to adopt.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// One tensor of the model. In the flat element space units follow each other, and within a unit
/// its tensors in registration order, those tied to other units first.
struct Tensor {
  std::string name{};                ///< unique in the model; messages and guards use it
  std::vector<std::size_t> shape{};  ///< row-major; an empty shape is a scalar
  /// What is gathered, and whose gradients are complete, together: usually a layer. Units are
  /// numbered from 0 in the order of the forward pass; numbers may be skipped.
  int unit = 0;
  /// Of its elements; without one, the optimizer's precision, or the first of `ByTensor`. A trained
  /// tensor is of a type that a precision has. A frozen one may be of any: integers are opaque
  /// bytes then, such as quantised blocks, which no arithmetic touches.
  std::optional<DType> dtype{};
  /// What model files call opaque elements, such as "I8" or "F8_E4M3"; without it what they are
  /// here, such as U8. A load compares it with what was saved, where both say something.
  FileDType file_dtype{};
  double weight_decay = 1.;   ///< times the rule's weight decay; finite and at least 0
  double learning_rate = 1.;  ///< times the learning rate; finite and at least 0
  /// A frozen tensor has no gradient and no state. Its values are partitioned, and gathered with
  /// its unit, where those of trained tensors are; elsewhere every rank has all of them.
  bool frozen = false;
  /// Every rank has all of a frozen tensor under every stage, and it is never sent: worth it for
  /// small ones, of which a gather takes at least 512 elements of each rank. Trained tensors are
  /// not whole.
  bool whole = false;
  /// Name of an earlier tensor of the same shape whose memory this one shares, such as the
  /// embedding that is used again as the output head. Its gradients add up there; its scales must
  /// be the same.
  std::string tied_to{};
  /// Over a grid: each rank of a model axis has another part of a larger tensor, of the same shape.
  /// Otherwise all have the same tensor: they start from the same values, bring the same gradients,
  /// and the norm counts it once.
  bool partitioned = false;
  /// The first dimension is the layer: slice i belongs to unit `unit + i`, whose guards call it by
  /// the name of the whole. One description, and one span of lent memory, serves all layers. Tied
  /// to another stacked tensor, slice by slice.
  bool stacked = false;
  /// Has its states in full where the rule's are codes, such as those of `AdamW8bit`: worth it for
  /// embeddings. Tensors, and slices of stacked ones, of fewer than `coded_from` elements have that
  /// anyway.
  bool full_states = false;
  /// Tensors of one group have one rule once `set_rule` or `set_lr` has given the group its own;
  /// until then, and without a name, the optimizer's. Tied tensors are of the same group.
  std::string group{};
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE

namespace zero::inline ZERO_NAMESPACE {

/// Elements from which on a tensor has its states in codes, if the rule has such.
inline constexpr std::uint64_t coded_from = 4096;

/// Number of elements of a tensor.
/// @throws Error (invalid_argument) for an extent above 2^63, with the tensor's name, and if the
///   product of the shape does not fit in 64 bits
[[nodiscard]] inline std::uint64_t element_count(Tensor const& tensor) {
  for (std::uint64_t const extent : tensor.shape) {
    if (extent <= std::uint64_t{1} << 63) continue;
    fail(ErrorKind::invalid_argument,
         {"tensor '",
          tensor.name,
          "' has an extent of ",
          extent,
          ", as has a size that was less than 0"});
  }
  // Decided first, or the order of the extents would decide whether an empty tensor overflows.
  for (std::size_t const extent : tensor.shape) {
    if (extent == 0) return 0;
  }
  std::uint64_t count = 1;
  for (std::size_t const extent : tensor.shape) count = checked_mul(count, extent);
  return count;
}

}  // namespace zero::inline ZERO_NAMESPACE
