/// @file
/// Where parameters live: full-size or this rank's share, in the library's memory or the trainer's.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stores/arena.hpp"
#include "zero/optimizer/stores/lent.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Parameters of one rank. Frozen tensors are full-size on every rank whatever the stage.
template <class Slots>
class ParameterStore {
 public:
  using Parameter = typename Slots::Parameter;
  using Form = StorageForm;
  static constexpr Form::Parameters form = Slots::form.parameters;

  template <class ArenaT>
  ZERO_COLD ParameterStore(std::vector<Tensor> const& tensors,
                           Partition const& partition,
                           StorageElements const& elements,
                           ArenaT& arena)
      : partition_(&partition),
        lent_(tensors, partition, "parameters", Slots::Memory::borrowed),
        base_(arena.template take<Parameter>(Role::parameters, elements.parameters)),
        frozen_(arena.template take<Parameter>(Role::parameters, elements.frozen)) {}

  [[nodiscard]] LentTensors<Parameter>& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors<Parameter> const& lent() const noexcept { return lent_; }

  /// A whole tensor that lives on every rank.
  [[nodiscard]] Parameter* tensor(std::size_t t) const {
    if constexpr (form == Form::Parameters::lent) return lent_[t];
    TensorPlace const& place = partition_->placement().places()[t];
    if (place.frozen) return frozen_.data() + place.offset;
    return partition_->in_full(t).in(base_);
  }

  /// A run of elements of a range that this rank holds. Where it holds its share alone, the range
  /// is that share of the bucket.
  [[nodiscard]] Parameter* segment(BucketSpan const& bucket, Segment const& piece) const {
    if constexpr (form == Form::Parameters::share) return piece.in_range.in(share(bucket));
    return piece.in_tensor.in(tensor(piece.tensor));
  }

  /// The range of a bucket that this rank holds.
  [[nodiscard]] Range held(BucketSpan const& bucket, int rank) const noexcept {
    return form == Form::Parameters::share ? bucket.share(rank) : bucket.whole();
  }

  /// This rank's share of a bucket.
  [[nodiscard]] Parameter* share(BucketSpan const& bucket) const noexcept
      requires(form == Form::Parameters::share) {
    return bucket.in_shards().in(base_);
  }

  /// All shares of a bucket as one run of memory, or null if they do not lie so.
  [[nodiscard]] Parameter* whole(BucketSpan const& bucket) const noexcept
      requires(form != Form::Parameters::share) {
    if constexpr (form == Form::Parameters::lent) return lent_.in_place(bucket.index());
    return bucket.in_full().in(base_);
  }

 private:
  Partition const* partition_;
  LentTensors<Parameter> lent_;
  std::span<Parameter> base_;
  std::span<Parameter> frozen_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
