/// @file
/// Where parameters live: full-size or this rank's share, in the library's memory or the trainer's.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/held/lent.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Parameters of one rank. Frozen tensors are full-size on every rank whatever the stage.
class ParameterStore {
 public:
  using Form = StorageForm::Parameters;

  ZERO_APART ZERO_COLD ParameterStore(std::vector<Tensor> const& tensors,
                                      Partition const& partition,
                                      Form form,
                                      DType dtype,
                                      StorageElements const& elements,
                                      Arena& arena);

  [[nodiscard]] LentTensors& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors const& lent() const noexcept { return lent_; }
  [[nodiscard]] DType dtype() const noexcept { return base_.dtype; }
  [[nodiscard]] bool shares() const noexcept { return form_ == Form::share; }

  /// A whole tensor that lives on every rank.
  ZERO_APART [[nodiscard]] Array tensor(std::size_t t) const;
  /// A run of elements of a range that this rank holds. Where it holds its share alone, the range
  /// is that share of the bucket.
  ZERO_APART [[nodiscard]] std::byte* segment(BucketSpan const& bucket, Segment const& piece) const;

  /// The range of a bucket that this rank holds.
  [[nodiscard]] Range held(BucketSpan const& bucket, int rank) const noexcept {
    return shares() ? bucket.share(rank) : bucket.whole();
  }
  /// This rank's share of a bucket, where it holds no more.
  [[nodiscard]] Array share(BucketSpan const& bucket) const noexcept {
    return base_.from(bucket.in_shards());
  }
  /// All shares of a bucket as one run of memory, null if they do not lie so; where more than a
  /// share is held.
  [[nodiscard]] Array whole(BucketSpan const& bucket) const noexcept {
    if (form_ == Form::lent) return {lent_.in_place(bucket.index()), base_.dtype};
    return base_.from(bucket.in_full());
  }

 private:
  Partition const* partition_;
  Form form_;
  LentTensors lent_;
  Array base_;
  Array frozen_;
};

#if ZERO_BODIES

ZERO_BODY ParameterStore::ParameterStore(std::vector<Tensor> const& tensors,
                                         Partition const& partition,
                                         Form form,
                                         DType dtype,
                                         StorageElements const& elements,
                                         Arena& arena)
    : partition_(&partition),
      form_(form),
      lent_(tensors, partition, "parameters", dtype, form == Form::lent),
      base_(arena.take(Role::parameters, elements.parameters, dtype)),
      frozen_(arena.take(Role::parameters, elements.frozen, dtype)) {}

ZERO_BODY Array ParameterStore::tensor(std::size_t t) const {
  if (form_ == Form::lent) return {lent_[t], base_.dtype};
  TensorPlace const& place = partition_->placement().places()[t];
  return place.frozen ? frozen_.from(place.offset) : base_.from(partition_->in_full(t));
}

ZERO_BODY std::byte* ParameterStore::segment(BucketSpan const& bucket, Segment const& piece) const {
  if (shares()) return share(bucket).at(piece.in_range);
  return tensor(piece.tensor).at(piece.in_tensor);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
