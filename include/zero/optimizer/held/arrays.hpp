/// @file
/// Where gradients, parameters, master weights and states of one rank lie.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/held/lent.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gradients of one rank.
///
/// Full gradients are kept for the whole model, or live in a pool for the units under way, or are
/// lent. Reduced gradients are this rank's share: within the full ones, or an array of their own,
/// in the wire dtype or, where micro-steps add up in them, in the accumulate dtype.
class GradientStore {
 public:
  using Form = StorageForm;

  ZERO_APART ZERO_COLD GradientStore(Model const& model,
                                     int rank,
                                     StorageForm const& form,
                                     KindTypes const& types,
                                     StorageElements const& elements,
                                     Arena& arena);

  [[nodiscard]] LentTensors& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors const& lent() const noexcept { return lent_; }
  /// Of a kind's full gradients, here and on their way.
  [[nodiscard]] DType dtype(std::size_t kind) const noexcept { return kinds_[kind].full.dtype; }

  /// Gives the group's full gradients memory to add to: zeros, but for tensors that are to be
  /// overwritten. What is kept for the whole model is there, and what is lent is as it is.
  /// @returns false if all slots of the pool are taken
  ZERO_APART [[nodiscard]] bool take(std::size_t g, bool overwritten);
  /// Takes it back.
  void release(std::size_t g) noexcept {
    if (slot_of_[g] == no_slot) return;
    kinds_[partition_->groups()[g].kind].taken[std::exchange(slot_of_[g], no_slot)] = 0;
  }
  /// Zeroes the tensors of a group that has memory of the library, of which `which(t)` says so.
  template <class Which>
  void clear(std::size_t g, Which const& which) const {
    partition_->for_each_segment(partition_->groups()[g].range, [&](Segment const& piece) {
      if (!which(piece.tensor)) return;
      Elements const full = tensor(piece.tensor);
      space_.zero(full.first, full.count * size_of(dtype(partition_->groups()[g].kind)));
    });
  }
  /// Full gradients that are kept are zero whenever nothing was added to them yet, so that a
  /// trainer may add to them without asking first.
  void clear_whole() const {
    for (KindGradients const& kind : kinds_) {
      if (kind.full_bytes > 0) space_.zero(kind.full.first, kind.full_bytes);
    }
  }

  /// Full gradients of a group that has memory of the library: [group.padded].
  ZERO_APART [[nodiscard]] Array full(std::size_t g) const noexcept;
  /// All shares of a bucket within them.
  ZERO_APART [[nodiscard]] Array full(BucketSpan const& bucket) const noexcept {
    return full(bucket.group()).from(bucket.in_group());
  }
  /// Full gradients of one tensor, where they are now; no elements for what has none.
  ZERO_APART [[nodiscard]] Elements tensor(std::size_t t) const noexcept;

  /// Where this rank's reduced share of a bucket is received, or micro-steps add up, where that is
  /// an array of its own.
  [[nodiscard]] Array share(BucketSpan const& bucket) const noexcept {
    return kinds_[bucket.kind()].shard.from(bucket.in_shards());
  }
  [[nodiscard]] Array sums(BucketSpan const& bucket) const noexcept {
    return kinds_[bucket.kind()].sums.from(bucket.in_shards());
  }
  /// This rank's reduced share of a bucket, after the reduction, unless it lies in lent tensors.
  [[nodiscard]] Array reduced(BucketSpan const& bucket) const noexcept {
    if (form_.reduced == Form::Reduced::in_place) return full(bucket).from(bucket.part(rank_));
    return form_.reduced == Form::Reduced::sums ? sums(bucket) : share(bucket);
  }

 private:
  static constexpr std::size_t no_slot = SIZE_MAX;
  /// Slots of the pool are of equal size, and taken by the groups under way. Groups of tied
  /// tensors, to which units add at different times, have places of their own.
  struct KindGradients {
    Array full;
    std::size_t full_bytes = 0;  ///< 0 where there are none
    Array shard;
    Array sums;
    Array pool;
    Array tied;
    std::uint64_t slot_elements = 0;
    std::vector<std::uint8_t> taken;
  };

  Model const* model_;
  Partition const* partition_;
  AnySpace space_;
  int rank_;
  StorageForm form_;
  LentTensors lent_;
  std::vector<KindGradients> kinds_;
  std::vector<std::size_t> slot_of_;        ///< of each group
  std::vector<std::uint64_t> tied_offset_;  ///< likewise
};

/// Parameters of one rank: all of them, or its share of those kinds that are not whole everywhere.
class ParameterStore {
 public:
  using Form = StorageForm::Parameters;

  ZERO_APART ZERO_COLD ParameterStore(std::vector<Tensor> const& tensors,
                                      Partition const& partition,
                                      Form form,
                                      KindTypes const& types,
                                      StorageElements const& elements,
                                      Arena& arena);

  [[nodiscard]] LentTensors& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors const& lent() const noexcept { return lent_; }
  [[nodiscard]] DType dtype(std::size_t kind) const noexcept { return bases_[kind].dtype; }
  /// Does this rank hold its share of a kind alone?
  [[nodiscard]] bool shares(std::size_t kind) const noexcept { return shares_[kind] != 0; }

  /// A tensor of which this rank holds all.
  ZERO_APART [[nodiscard]] Array tensor(std::size_t t) const;
  /// A run of elements of a range that this rank holds. Where it holds its share alone, the range
  /// is that share of the bucket.
  ZERO_APART [[nodiscard]] Array segment(BucketSpan const& bucket, Segment const& piece) const;

  /// The range of a bucket that this rank holds.
  [[nodiscard]] Range held(BucketSpan const& bucket, int rank) const noexcept {
    return shares(bucket.kind()) ? bucket.share(rank) : bucket.whole();
  }
  /// This rank's share of a bucket, where it holds no more.
  [[nodiscard]] Array share(BucketSpan const& bucket) const noexcept {
    return bases_[bucket.kind()].from(bucket.in_shards());
  }
  /// All shares of a bucket as one run of memory, null if they do not lie so; where more than a
  /// share is held.
  [[nodiscard]] Array whole(BucketSpan const& bucket) const noexcept {
    if (form_ == Form::lent) return {lent_.in_place(bucket.index()), dtype(bucket.kind())};
    return bases_[bucket.kind()].from(bucket.in_full());
  }

 private:
  Partition const* partition_;
  Form form_;
  LentTensors lent_;
  std::vector<Array> bases_;          ///< by kind
  std::vector<std::uint8_t> shares_;  ///< likewise
};

/// Master weights and states of what one rank updates: its share of each bucket, or the whole
/// bucket where every rank updates everything.
class StateStore {
 public:
  ZERO_APART ZERO_COLD StateStore(
      int rank, bool shares, KindTypes const& types, StorageElements const& elements, Arena& arena);

  [[nodiscard]] bool shares() const noexcept { return shares_; }

  /// The elements of a bucket that this rank updates.
  [[nodiscard]] Range updated(BucketSpan const& bucket) const noexcept {
    return shares_ ? bucket.share(rank_) : bucket.whole();
  }
  /// Where the k-th array has that range; not where it has no memory of its own. Nobody else knows
  /// where arrays lie.
  [[nodiscard]] Array at(BucketSpan const& bucket, std::size_t k) const noexcept {
    return arrays_[bucket.kind()][k].from(shares_ ? bucket.in_shards() : bucket.in_full());
  }
  /// The same of what this rank owns of the bucket.
  [[nodiscard]] Array owned(BucketSpan const& bucket, std::size_t k) const noexcept {
    return shares_ ? at(bucket, k) : at(bucket, k).from(bucket.part(rank_));
  }

 private:
  int rank_;
  bool shares_;
  /// By kind; the first null where parameters are their own masters.
  std::vector<std::vector<Array>> arrays_;
};

#if ZERO_BODIES

ZERO_BODY GradientStore::GradientStore(Model const& model,
                                       int rank,
                                       StorageForm const& form,
                                       KindTypes const& types,
                                       StorageElements const& elements,
                                       Arena& arena)
    : model_(&model),
      partition_(&model.partition),
      space_(arena.space()),
      rank_(rank),
      form_(form),
      lent_(model.tensors,
            model.partition,
            "gradients",
            types,
            &StorageTypes::wire,
            form.gradients == Form::Gradients::lent,
            form.reduced == Form::Reduced::lent),
      kinds_(types.size()),
      slot_of_(model.partition.groups().size(), no_slot) {
  for (std::size_t k = 0; k < types.size(); ++k) {
    KindElements const& kind = elements.kinds[k];
    KindGradients& own = kinds_[k];
    own.full = arena.take(Role::gradients, kind.full_gradients, types[k].wire);
    own.full_bytes = own.full.bytes(kind.full_gradients);
    own.shard = arena.take(Role::gradients, kind.shard_gradients, types[k].wire);
    own.sums = arena.take(Role::gradients, kind.shard_sums, types[k].accumulate);
    std::uint64_t const slots = kind.gradient_slot * kind.gradient_slots;
    own.pool = arena.take(Role::gradient_pool, slots, types[k].wire);
    own.tied = arena.take(Role::gradient_pool, kind.tied_gradients, types[k].wire);
    own.slot_elements = kind.gradient_slot;
    own.taken = std::vector<std::uint8_t>(static_cast<std::size_t>(kind.gradient_slots), 0);
  }
  std::vector<std::uint64_t> offset(types.size(), 0);
  for (BucketGroup const& group : model.partition.groups()) {
    tied_offset_.push_back(offset[group.kind]);
    if (group.tied) offset[group.kind] += group.padded;
  }
}

ZERO_BODY bool GradientStore::take(std::size_t g, bool overwritten) {
  BucketGroup const& group = partition_->groups()[g];
  if (form_.gradients != Form::Gradients::pooled || group.padded == 0) return true;
  if (!group.tied && slot_of_[g] == no_slot) {
    auto& taken = kinds_[group.kind].taken;
    auto const free = std::find(taken.begin(), taken.end(), 0);
    if (free == taken.end()) return false;
    *free = 1;
    slot_of_[g] = static_cast<std::size_t>(free - taken.begin());
  }
  Array const all = full(g);
  std::byte* done = all.first;
  auto const zero_to = [&](std::byte* end) {
    if (end > done) space_.zero(done, static_cast<std::size_t>(end - done));
  };
  // What other units add to as well begins at zero all the same.
  if (overwritten && !group.tied && group.units.size() == 1) {
    partition_->for_each_segment(group.range, [&](Segment const& piece) {
      if (model_->is_tied(piece.tensor)) return;  // is added to, and so begins at zero
      Elements const own = tensor(piece.tensor);
      zero_to(static_cast<std::byte*>(own.first));
      done = static_cast<std::byte*>(own.first) + all.bytes(own.count);
    });
  }
  zero_to(all.at(group.padded));
  return true;
}

ZERO_BODY Array GradientStore::full(std::size_t g) const noexcept {
  BucketGroup const& group = partition_->groups()[g];
  KindGradients const& kind = kinds_[group.kind];
  if (group.padded == 0) return {nullptr, kind.full.dtype};
  if (form_.gradients == Form::Gradients::whole) return kind.full.from(group.in_full);
  return group.tied ? kind.tied.from(tied_offset_[g])
                    : kind.pool.from(slot_of_[g] * kind.slot_elements);
}

ZERO_BODY Elements GradientStore::tensor(std::size_t t) const noexcept {
  TensorPlace const& place = partition_->place(t);
  if (place.frozen || place.count == 0) return {};
  auto const count = static_cast<std::size_t>(place.count);
  if (form_.gradients != Form::Gradients::lent) {
    return {full(partition_->group_of(t)).at(partition_->in_group(t)), count};
  }
  return {lent_[t], lent_[t] == nullptr ? 0 : count};
}

ZERO_BODY ParameterStore::ParameterStore(std::vector<Tensor> const& tensors,
                                         Partition const& partition,
                                         Form form,
                                         KindTypes const& types,
                                         StorageElements const& elements,
                                         Arena& arena)
    : partition_(&partition),
      form_(form),
      lent_(tensors,
            partition,
            "parameters",
            types,
            &StorageTypes::parameter,
            form == Form::lent,
            false) {
  for (std::size_t k = 0; k < types.size(); ++k) {
    bases_.push_back(
        arena.take(Role::parameters, elements.kinds[k].parameters, types[k].parameter));
    shares_.push_back(form == Form::share && !partition.placement().kinds()[k].whole);
  }
}

ZERO_BODY Array ParameterStore::tensor(std::size_t t) const {
  TensorPlace const& place = partition_->place(t);
  if (form_ == Form::lent) return {lent_[t], dtype(place.kind)};
  return bases_[place.kind].from(partition_->in_full(t));
}

ZERO_BODY Array ParameterStore::segment(BucketSpan const& bucket, Segment const& piece) const {
  if (shares(bucket.kind())) return share(bucket).from(piece.in_range);
  return tensor(piece.tensor).from(piece.in_tensor);
}

ZERO_BODY StateStore::StateStore(
    int rank, bool shares, KindTypes const& types, StorageElements const& elements, Arena& arena)
    : rank_(rank), shares_(shares), arrays_(types.size()) {
  for (std::size_t k = 0; k < types.size(); ++k) {
    std::vector<Array>& arrays = arrays_[k];
    for (ArrayForm const& form : types[k].arrays) {
      Role const role = arrays.empty() ? Role::master : Role::state;
      bool const held = form.coding != Coding::parameter;
      std::uint64_t const count = held ? elements.kinds[k].updated : 0;
      arrays.push_back(arena.take(role, count, form.dtype, form.coding));
    }
  }
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
