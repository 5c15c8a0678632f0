/// @file
/// Which random bits an update has, where something is rounded stochastically.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/seed.hpp"
#include "zero/concepts/space.hpp"
#include "zero/kernel/random_key.hpp"
#include "zero/layout/range.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Where random bits of tensors are from: what depends on no rank, stage or bucket.
class Randomness {
 public:
  /// @param model       outlives this
  /// @param model_rank  on the model axis of a grid; 0 without one
  /// @param seed        a word in the memory of the space; null where nothing is random
  Randomness(Model const& model, int model_rank, std::int64_t* seed) noexcept
      : model_(&model), model_rank_(model_rank), seed_(reinterpret_cast<std::uint64_t*>(seed)) {}

  /// Does a step round anything stochastically?
  [[nodiscard]] bool used() const noexcept { return seed_ != nullptr; }
  /// Of a run of a tensor's elements. By the name that the trainer gave it: layers of a stack have
  /// numbers of the whole.
  ZERO_APART [[nodiscard]] RandomOrigin of(Segment const& piece) const noexcept;

  /// The seed lies in the space, so that work which was recorded has that of a later load.
  ZERO_APART [[nodiscard]] ZERO_COLD Seed seed(AnySpace const& space) const;
  ZERO_APART ZERO_COLD void set(AnySpace const& space, Seed seed) const;

 private:
  Model const* model_;
  int model_rank_;
  std::uint64_t* seed_;
};

#if ZERO_BODIES

ZERO_BODY RandomOrigin Randomness::of(Segment const& piece) const noexcept {
  Slice const& slice = model_->slices[piece.tensor];
  Tensor const& tensor = model_->described[slice.described];
  // Of what is cut, each part is a tensor of its own; what is not, all ranks have alike.
  auto const part = tensor.partitioned ? static_cast<std::uint64_t>(model_rank_) + 1 : 0;
  return {kernel::random_key(tensor.name, part), slice.first + piece.in_tensor.offset(), seed_};
}

ZERO_BODY Seed Randomness::seed(AnySpace const& space) const {
  Seed seed;
  if (used()) space.download(&seed.value, seed_, sizeof(seed.value));
  return seed;
}

ZERO_BODY void Randomness::set(AnySpace const& space, Seed seed) const {
  if (used()) space.upload(seed_, &seed.value, sizeof(seed.value));
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
