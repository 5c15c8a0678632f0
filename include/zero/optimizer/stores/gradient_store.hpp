/// @file
/// Where gradients live before and after their reduction.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stores/arena.hpp"
#include "zero/optimizer/stores/gradient_slots.hpp"
#include "zero/optimizer/stores/lent.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gradients of one rank.
///
/// Full gradients are kept for the whole model, or live in a pool for the units under way, or are
/// lent. Reduced gradients are this rank's share: in place within the full ones, or an array of
/// their own, in the wire dtype or, where micro-steps add up in them, in the accumulate dtype.
template <class Slots>
class GradientStore {
 public:
  using Wire = typename Slots::Wire;
  using Accumulate = typename Slots::Accumulate;
  using Gradient = typename Slots::Gradient;
  using Form = StorageForm;
  static constexpr Form::Gradients form = Slots::form.gradients;

  template <class ArenaT>
  ZERO_COLD GradientStore(std::vector<Tensor> const& tensors,
                          Partition const& partition,
                          int rank,
                          StorageElements const& elements,
                          ArenaT& arena)
      : partition_(&partition),
        rank_(rank),
        lent_(tensors, partition, "gradients", Slots::Memory::borrowed),
        full_(arena.template take<Wire>(Role::gradients, elements.full_gradients)),
        shard_(arena.template take<Wire>(Role::gradients, elements.shard_gradients)),
        sums_(arena.template take<Accumulate>(Role::gradients, elements.shard_sums)),
        pool_(arena.template take<Wire>(Role::gradient_pool,
                                        elements.gradient_slot * elements.gradient_slots)),
        tied_(arena.template take<Wire>(Role::gradient_pool, elements.tied_gradients)),
        slots_(partition, elements) {}

  [[nodiscard]] LentTensors<Wire>& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors<Wire> const& lent() const noexcept { return lent_; }

  /// True if the group's full gradients have memory right now, or never need a slot.
  [[nodiscard]] bool placed(std::size_t g) const noexcept {
    return form != Form::Gradients::pooled || slots_.placed(g);
  }
  /// Gives the group a slot of the pool; false if all are taken.
  [[nodiscard]] bool place(std::size_t g) noexcept { return slots_.place(g); }
  void release(std::size_t g) noexcept { slots_.release(g); }

  /// Full gradients of a placed group in the library's memory: [group.padded].
  [[nodiscard]] std::span<Wire> full(std::size_t g) const noexcept {
    Group const& group = partition_->groups()[g];
    if (group.padded == 0) return {};
    return {memory(g), static_cast<std::size_t>(group.padded)};
  }
  /// All shares of a bucket within them.
  [[nodiscard]] Wire* full(BucketSpan const& bucket) const noexcept {
    return bucket.in_group().in(memory(bucket.group()));
  }
  /// Full gradients of one tensor, where they are now.
  [[nodiscard]] std::span<Wire> tensor(std::size_t t) const noexcept {
    TensorPlace const& place = partition_->placement().places()[t];
    if (place.frozen || place.count == 0) return {};
    auto const count = static_cast<std::size_t>(place.count);
    if constexpr (form == Form::Gradients::lent) {
      return {lent_[t], lent_[t] == nullptr ? 0 : count};
    }
    return {partition_->in_group(t).in(memory(partition_->group_of(t))), count};
  }

  /// Where this rank's reduced share of a bucket is received, where that is an array of its own.
  [[nodiscard]] Wire* share(BucketSpan const& bucket) const noexcept {
    return bucket.in_shards().in(shard_);
  }
  /// Where micro-steps add up.
  [[nodiscard]] Accumulate* sums(BucketSpan const& bucket) const noexcept {
    return bucket.in_shards().in(sums_);
  }
  /// This rank's reduced share of a bucket, after the reduction.
  [[nodiscard]] Gradient* reduced(BucketSpan const& bucket) const noexcept {
    if constexpr (Slots::form.reduced == Form::Reduced::sums) {
      return sums(bucket);
    } else if constexpr (Slots::form.reduced == Form::Reduced::in_place) {
      return bucket.part(rank_).in(full(bucket));
    } else {
      return share(bucket);
    }
  }

  void zero_full(typename Slots::Space const& space) const {
    if (!full_.empty()) space.zero(full_.data(), full_.size_bytes());
  }

 private:
  /// Where the padded memory of a placed group begins.
  [[nodiscard]] Wire* memory(std::size_t g) const noexcept {
    Group const& group = partition_->groups()[g];
    if constexpr (form == Form::Gradients::whole) return group.in_full.in(full_);
    return (group.tied ? tied_ : pool_).data() + slots_.offset(g);
  }

  Partition const* partition_;
  int rank_;
  LentTensors<Wire> lent_;
  std::span<Wire> full_;
  std::span<Wire> shard_;
  std::span<Accumulate> sums_;
  std::span<Wire> pool_;
  std::span<Wire> tied_;
  GradientSlots slots_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
