/// @file
/// Where gradients live before and after their reduction.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/arena.hpp"
#include "zero/optimizer/lent.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline v0_1::detail {

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
  static constexpr int no_slot = -1;

  template <class ArenaT>
  ZERO_COLD GradientStore(std::vector<Tensor> const& tensors,
                          Partition const& partition,
                          int rank,
                          StorageElements const& elements,
                          ArenaT& arena)
      : partition_(&partition),
        rank_(rank),
        lent_(tensors, partition, "gradients"),
        full_(arena.template take<Wire>(Role::gradients, elements.full_gradients)),
        shard_(arena.template take<Wire>(Role::gradients, elements.shard_gradients)),
        sums_(arena.template take<Accumulate>(Role::gradients, elements.shard_sums)),
        pool_(arena.template take<Wire>(Role::gradient_pool,
                                        elements.gradient_slot * elements.gradient_slots)),
        tied_(arena.template take<Wire>(Role::gradient_pool, elements.tied_gradients)),
        slot_elements_(elements.gradient_slot),
        slot_taken_(static_cast<std::size_t>(elements.gradient_slots), 0),
        slot_of_(partition.groups().size(), no_slot),
        tied_offset_(partition.groups().size(), 0) {
    std::uint64_t offset = 0;
    for (std::size_t g = 0; g < partition.groups().size(); ++g) {
      tied_offset_[g] = offset;
      if (partition.groups()[g].tied) offset += partition.groups()[g].padded;
    }
  }

  [[nodiscard]] LentTensors<Wire>& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors<Wire> const& lent() const noexcept { return lent_; }

  /// True if the group's full gradients have memory right now, or never need a slot.
  [[nodiscard]] bool placed(std::size_t g) const noexcept {
    Group const& group = partition_->groups()[g];
    return !Slots::pools_gradients || group.tied || group.padded == 0 || slot_of_[g] != no_slot;
  }
  /// Gives the group a slot of the pool; false if all are taken.
  [[nodiscard]] bool place(std::size_t g) noexcept {
    for (std::size_t s = 0; s < slot_taken_.size(); ++s) {
      if (slot_taken_[s]) continue;
      slot_taken_[s] = 1;
      slot_of_[g] = static_cast<int>(s);
      return true;
    }
    return false;
  }
  void release(std::size_t g) noexcept {
    if (slot_of_[g] == no_slot) return;
    slot_taken_[static_cast<std::size_t>(slot_of_[g])] = 0;
    slot_of_[g] = no_slot;
  }

  /// Full gradients of a placed group in the library's memory: [group.padded].
  [[nodiscard]] std::span<Wire> full(std::size_t g) const noexcept {
    Group const& group = partition_->groups()[g];
    auto const count = static_cast<std::size_t>(group.padded);
    if (count == 0) return {};
    if constexpr (Slots::keeps_full_gradients) {
      return full_.subspan(static_cast<std::size_t>(group.padded_begin), count);
    }
    if (group.tied) return tied_.subspan(static_cast<std::size_t>(tied_offset_[g]), count);
    auto const slot = static_cast<std::uint64_t>(slot_of_[g]);
    return pool_.subspan(static_cast<std::size_t>(slot * slot_elements_), count);
  }

  /// Full gradients of one tensor, where they are now.
  [[nodiscard]] std::span<Wire> tensor(std::size_t t) const noexcept {
    TensorPlace const& place = partition_->placement().places()[t];
    if (place.frozen || place.count == 0) return {};
    auto const count = static_cast<std::size_t>(place.count);
    if constexpr (Slots::borrowed) return {lent_[t], count};
    std::size_t const g = partition_->group_of(t);
    return full(g).subspan(static_cast<std::size_t>(place.offset - partition_->groups()[g].begin),
                           count);
  }

  /// Where this rank's reduced share of a bucket is received, where that is an array of its own.
  [[nodiscard]] Wire* share(BucketSpan const& bucket) const noexcept {
    return shard_.data() + bucket.shard_begin;
  }
  /// Where micro-steps add up, with AccumulateShard.
  [[nodiscard]] Accumulate* sums(BucketSpan const& bucket) const noexcept {
    return sums_.data() + bucket.shard_begin;
  }

  /// This rank's reduced share of a bucket, after the reduction.
  [[nodiscard]] Gradient* reduced(BucketSpan const& bucket) const noexcept {
    if constexpr (Slots::reduced_shard) {
      return sums(bucket);
    } else if constexpr (Slots::keeps_full_gradients) {
      return whole_bucket(bucket) + static_cast<std::uint64_t>(rank_) * bucket.shard;
    } else {
      return share(bucket);
    }
  }

  void zero_full(typename Slots::Space const& space) const {
    if (!full_.empty()) space.zero(full_.data(), full_.size_bytes());
  }

  /// All N shares of a bucket within the kept full gradients.
  [[nodiscard]] Wire* whole_bucket(BucketSpan const& bucket) const noexcept
      requires(Slots::keeps_full_gradients) {
    auto const& group = partition_->groups()[static_cast<std::size_t>(bucket.group)];
    return full_.data() + group.padded_begin + (bucket.begin - group.begin);
  }

 private:
  Partition const* partition_;
  int rank_;
  LentTensors<Wire> lent_;
  std::span<Wire> full_;
  std::span<Wire> shard_;
  std::span<Accumulate> sums_;
  std::span<Wire> pool_;
  std::span<Wire> tied_;
  std::uint64_t slot_elements_;
  std::vector<std::uint8_t> slot_taken_;
  std::vector<int> slot_of_;
  std::vector<std::uint64_t> tied_offset_;
};

}  // namespace zero::inline v0_1::detail
