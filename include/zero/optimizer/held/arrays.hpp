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
                                     StorageTypes const& types,
                                     StorageElements const& elements,
                                     Arena& arena);

  [[nodiscard]] LentTensors& lent() noexcept { return lent_; }
  [[nodiscard]] LentTensors const& lent() const noexcept { return lent_; }
  /// Of full gradients, here and on their way.
  [[nodiscard]] DType dtype() const noexcept { return full_.dtype; }

  /// Gives the group's full gradients memory to add to: zeros, but for tensors that are to be
  /// overwritten. What is kept for the whole model is there, and what is lent is as it is.
  /// @returns false if all slots of the pool are taken
  ZERO_APART [[nodiscard]] bool take(std::size_t g, bool overwritten);
  /// Takes it back.
  void release(std::size_t g) noexcept {
    if (slot_of_[g] != no_slot) taken_[std::exchange(slot_of_[g], no_slot)] = 0;
  }
  /// Zeroes the tensors of a group that has memory of the library, of which `which(t)` says so.
  template <class Which>
  void clear(std::size_t g, Which const& which) const {
    partition_->for_each_segment(partition_->groups()[g].range, [&](Segment const& piece) {
      if (!which(piece.tensor)) return;
      Elements const full = tensor(piece.tensor);
      space_.zero(full.first, full.count * size_of(dtype()));
    });
  }
  /// Full gradients that are kept are zero whenever nothing was added to them yet, so that a
  /// trainer may add to them without asking first.
  void clear_whole() const {
    if (full_.first == nullptr) return;
    space_.zero(full_.first, full_.bytes(partition_->padded_elements()));
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
    return shard_.from(bucket.in_shards());
  }
  [[nodiscard]] Array sums(BucketSpan const& bucket) const noexcept {
    return sums_.from(bucket.in_shards());
  }
  /// This rank's reduced share of a bucket, after the reduction, unless it lies in lent tensors.
  [[nodiscard]] Array reduced(BucketSpan const& bucket) const noexcept {
    if (form_.reduced == Form::Reduced::in_place) return full(bucket).from(bucket.part(rank_));
    return form_.reduced == Form::Reduced::sums ? sums(bucket) : share(bucket);
  }

 private:
  static constexpr std::size_t no_slot = SIZE_MAX;

  Model const* model_;
  Partition const* partition_;
  AnySpace space_;
  int rank_;
  StorageForm form_;
  LentTensors lent_;
  Array full_;
  Array shard_;
  Array sums_;
  Array pool_;
  Array tied_;
  /// Slots of the pool are of equal size, and taken by the groups under way. Groups of tied
  /// tensors, to which units add at different times, have places of their own.
  std::uint64_t slot_elements_;
  std::vector<std::uint8_t> taken_;
  std::vector<std::size_t> slot_of_;        ///< of each group
  std::vector<std::uint64_t> tied_offset_;  ///< likewise
};

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

/// Master weights and states of what one rank updates: its share of each bucket, or the whole
/// bucket where every rank updates everything.
class StateStore {
 public:
  ZERO_APART ZERO_COLD StateStore(int rank,
                                  bool shares,
                                  StorageTypes const& types,
                                  StorageElements const& elements,
                                  Arena& arena);

  [[nodiscard]] bool shares() const noexcept { return shares_; }
  /// How many arrays the rule works on, the masters among them.
  [[nodiscard]] std::size_t arrays() const noexcept { return arrays_.size(); }

  /// The elements of a bucket that this rank updates.
  [[nodiscard]] Range updated(BucketSpan const& bucket) const noexcept {
    return shares_ ? bucket.share(rank_) : bucket.whole();
  }
  /// Where the k-th array has that range; not where it has no memory of its own. Nobody else knows
  /// where arrays lie.
  [[nodiscard]] Array at(BucketSpan const& bucket, std::size_t k) const noexcept {
    return arrays_[k].from(shares_ ? bucket.in_shards() : bucket.in_full());
  }

 private:
  int rank_;
  bool shares_;
  std::vector<Array> arrays_;  ///< the first null where parameters are their own masters
};

#if ZERO_BODIES

ZERO_BODY GradientStore::GradientStore(Model const& model,
                                       int rank,
                                       StorageForm const& form,
                                       StorageTypes const& types,
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
            types.wire,
            form.gradients == Form::Gradients::lent,
            form.reduced == Form::Reduced::lent),
      full_(arena.take(Role::gradients, elements.full_gradients, types.wire)),
      shard_(arena.take(Role::gradients, elements.shard_gradients, types.wire)),
      sums_(arena.take(Role::gradients, elements.shard_sums, types.accumulate)),
      pool_(arena.take(
          Role::gradient_pool, elements.gradient_slot * elements.gradient_slots, types.wire)),
      tied_(arena.take(Role::gradient_pool, elements.tied_gradients, types.wire)),
      slot_elements_(elements.gradient_slot),
      taken_(static_cast<std::size_t>(elements.gradient_slots), 0),
      slot_of_(model.partition.groups().size(), no_slot) {
  std::uint64_t offset = 0;
  for (BucketGroup const& group : model.partition.groups()) {
    tied_offset_.push_back(offset);
    if (group.tied) offset += group.padded;
  }
}

ZERO_BODY bool GradientStore::take(std::size_t g, bool overwritten) {
  BucketGroup const& group = partition_->groups()[g];
  if (form_.gradients != Form::Gradients::pooled || group.padded == 0) return true;
  if (!group.tied && slot_of_[g] == no_slot) {
    auto const free = std::find(taken_.begin(), taken_.end(), 0);
    if (free == taken_.end()) return false;
    *free = 1;
    slot_of_[g] = static_cast<std::size_t>(free - taken_.begin());
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
  if (group.padded == 0) return {nullptr, dtype()};
  if (form_.gradients == Form::Gradients::whole) return full_.from(group.in_full);
  return group.tied ? tied_.from(tied_offset_[g]) : pool_.from(slot_of_[g] * slot_elements_);
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
                                         DType dtype,
                                         StorageElements const& elements,
                                         Arena& arena)
    : partition_(&partition),
      form_(form),
      lent_(tensors, partition, "parameters", dtype, form == Form::lent, false),
      base_(arena.take(Role::parameters, elements.parameters, dtype)),
      frozen_(arena.take(Role::parameters, elements.frozen, dtype)) {}

ZERO_BODY Array ParameterStore::tensor(std::size_t t) const {
  if (form_ == Form::lent) return {lent_[t], base_.dtype};
  if (partition_->place(t).frozen) return frozen_.from(partition_->place(t).offset);
  return base_.from(partition_->in_full(t));
}

ZERO_BODY std::byte* ParameterStore::segment(BucketSpan const& bucket, Segment const& piece) const {
  if (shares()) return share(bucket).at(piece.in_range);
  return tensor(piece.tensor).at(piece.in_tensor);
}

ZERO_BODY StateStore::StateStore(
    int rank, bool shares, StorageTypes const& types, StorageElements const& elements, Arena& arena)
    : rank_(rank), shares_(shares) {
  for (ArrayForm const& form : types.arrays) {
    Role const role = arrays_.empty() ? Role::master : Role::state;
    bool const held = form.coding != Coding::parameter;
    arrays_.push_back(arena.take(role, held ? elements.updated : 0, form.dtype));
  }
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
