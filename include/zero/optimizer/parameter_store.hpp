/// @file
/// Where parameters live: full-size or this rank's share, in the library's memory or the trainer's.
#pragma once

#include "zero/concepts/memory.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/arena.hpp"
#include "zero/optimizer/lent.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline v0_1::detail {

/// Parameters of one rank. Frozen tensors are full-size on every rank whatever the stage.
template <class Slots>
class ParameterStore {
 public:
  using Parameter = typename Slots::Parameter;
  static constexpr bool sharded = Slots::sharding.parameters;

  template <class ArenaT>
  ParameterStore(std::vector<Tensor> const& tensors,
                 Partition const& partition,
                 StorageElements const& elements,
                 ArenaT& arena)
      : partition_(&partition),
        lent_(tensors, partition, "parameters"),
        base_(arena.template take<Parameter>(Role::parameters, elements.parameters)),
        frozen_(arena.template take<Parameter>(Role::parameters, elements.frozen)) {}

  [[nodiscard]] LentTensors<Parameter>& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors<Parameter> const& lent() const noexcept { return lent_; }

  /// A whole tensor that lives on every rank.
  [[nodiscard]] Parameter* tensor(std::size_t t) const {
    if constexpr (Slots::borrowed) return lent_[t];
    TensorPlace const& place = partition_->placement().places()[t];
    if (place.frozen) return frozen_.data() + place.offset;
    return base_.data() + partition_->padded_offset(t);
  }

  /// A run of elements that this rank holds. Where parameters are sharded the segment must come
  /// from this rank's share of the bucket.
  [[nodiscard]] Parameter* segment(BucketSpan const& bucket, Segment const& piece) const {
    if constexpr (sharded) return base_.data() + bucket.shard_begin + piece.range_offset;
    return tensor(piece.tensor) + piece.tensor_offset;
  }

  /// This rank's share of a bucket, where parameters are sharded.
  [[nodiscard]] Parameter* share(BucketSpan const& bucket) const noexcept requires sharded {
    return base_.data() + bucket.shard_begin;
  }

  /// All N shares of a bucket as one run of memory, or null if they do not lie so.
  [[nodiscard]] Parameter* whole_bucket(std::size_t b) const noexcept requires(!sharded) {
    if constexpr (Slots::borrowed) return lent_.in_place(b);
    BucketSpan const& bucket = partition_->buckets()[b];
    Group const& group = partition_->groups()[static_cast<std::size_t>(bucket.group)];
    return base_.data() + group.padded_begin + (bucket.begin - group.begin);
  }

 private:
  Partition const* partition_;
  LentTensors<Parameter> lent_;
  std::span<Parameter> base_;
  std::span<Parameter> frozen_;
};

}  // namespace zero::inline v0_1::detail
