/// @file
/// Where gradients live before and after their reduction.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/gradient_slots.hpp"
#include "zero/optimizer/held/lent.hpp"
#include "zero/optimizer/tables/kernels.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gradients of one rank.
///
/// Full gradients are kept for the whole model, or live in a pool for the units under way, or are
/// lent. Reduced gradients are this rank's share: in place within the full ones, or an array of
/// their own, in the wire dtype or, where micro-steps add up in them, in the accumulate dtype.
class GradientStore {
 public:
  using Form = StorageForm;

  ZERO_APART ZERO_COLD GradientStore(std::vector<Tensor> const& tensors,
                                     Partition const& partition,
                                     int rank,
                                     StorageForm const& form,
                                     DTypes const& types,
                                     StorageElements const& elements,
                                     Arena& arena);

  [[nodiscard]] LentTensors& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors const& lent() const noexcept { return lent_; }
  /// Of full gradients, here and on their way.
  [[nodiscard]] DType dtype() const noexcept { return full_.dtype; }

  /// True if the group's full gradients have memory right now, or never need a slot.
  ZERO_APART [[nodiscard]] bool placed(std::size_t g) const noexcept {
    return form_.gradients != Form::Gradients::pooled || slots_.placed(g);
  }
  /// Gives the group a slot of the pool; false if all are taken.
  ZERO_APART [[nodiscard]] bool place(std::size_t g) noexcept { return slots_.place(g); }
  ZERO_APART void release(std::size_t g) noexcept { slots_.release(g); }

  /// Full gradients of a placed group in the library's memory: [group.padded].
  ZERO_APART [[nodiscard]] Array full(std::size_t g) const noexcept {
    Group const& group = partition_->groups()[g];
    if (group.padded == 0) return {nullptr, dtype()};
    if (form_.gradients == Form::Gradients::whole) return full_.from(group.in_full);
    return (group.tied ? tied_ : pool_).from(slots_.offset(g));
  }
  /// All shares of a bucket within them.
  ZERO_APART [[nodiscard]] Array full(BucketSpan const& bucket) const noexcept {
    return full(bucket.group()).from(bucket.in_group());
  }
  /// Full gradients of one tensor, where they are now; no elements for what has none.
  ZERO_APART [[nodiscard]] Elements tensor(std::size_t t) const noexcept;

  /// Where this rank's reduced share of a bucket is received, where that is an array of its own.
  [[nodiscard]] Array share(BucketSpan const& bucket) const noexcept {
    return shard_.from(bucket.in_shards());
  }
  /// Where micro-steps add up.
  [[nodiscard]] Array sums(BucketSpan const& bucket) const noexcept {
    return sums_.from(bucket.in_shards());
  }
  /// This rank's reduced share of a bucket, after the reduction.
  ZERO_APART [[nodiscard]] Array reduced(BucketSpan const& bucket) const noexcept {
    switch (form_.reduced) {
      case Form::Reduced::sums: return sums(bucket);
      case Form::Reduced::in_place: return full(bucket).from(bucket.part(rank_));
      case Form::Reduced::own: break;
    }
    return share(bucket);
  }
  /// All full gradients that are kept.
  [[nodiscard]] Array const& whole() const noexcept { return full_; }

 private:
  Partition const* partition_;
  int rank_;
  StorageForm form_;
  LentTensors lent_;
  Array full_;
  Array shard_;
  Array sums_;
  Array pool_;
  Array tied_;
  GradientSlots slots_;
};

#if ZERO_BODIES

ZERO_BODY GradientStore::GradientStore(std::vector<Tensor> const& tensors,
                                       Partition const& partition,
                                       int rank,
                                       StorageForm const& form,
                                       DTypes const& types,
                                       StorageElements const& elements,
                                       Arena& arena)
    : partition_(&partition),
      rank_(rank),
      form_(form),
      lent_(tensors, partition, "gradients", types.wire, form.gradients == Form::Gradients::lent),
      full_(arena.take(Role::gradients, elements.full_gradients, types.wire)),
      shard_(arena.take(Role::gradients, elements.shard_gradients, types.wire)),
      sums_(arena.take(Role::gradients, elements.shard_sums, types.accumulate)),
      pool_(arena.take(
          Role::gradient_pool, elements.gradient_slot * elements.gradient_slots, types.wire)),
      tied_(arena.take(Role::gradient_pool, elements.tied_gradients, types.wire)),
      slots_(partition, elements) {}

ZERO_BODY Elements GradientStore::tensor(std::size_t t) const noexcept {
  TensorPlace const& place = partition_->placement().places()[t];
  if (place.frozen || place.count == 0) return {};
  auto const count = static_cast<std::size_t>(place.count);
  if (form_.gradients == Form::Gradients::lent) {
    return {lent_[t], lent_[t] == nullptr ? 0 : count};
  }
  return {full(partition_->group_of(t)).at(partition_->in_group(t)), count};
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
