/// @file
/// Full parameters of the units in use, where a rank keeps only its share: a fixed pool, filled
/// ahead of time.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/stores/arena.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"
#include "zero/optimizer/stores/staging.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Memory for one gather group, and the gathers that fill it.
template <class Ticket>
struct GatherSlot {
  int group = -1;
  int users = 0;
  int first_read = 0;  ///< the first and the last of its units that were read since it was gathered
  int last_read = -1;
  std::size_t under_way = 0;
  std::vector<Ticket> tickets;
};

/// Gathers units into `prefetch + 1` slots of the size of the largest gather group.
///
/// The next group is requested before the current one is given out, following the direction of the
/// last two acquisitions. A group that nobody uses stays until all of its units were read, by the
/// first and the last one, or another group is. Which gathers are started depends only on the
/// sequence of acquisitions and releases, so ranks that run the same loop start the same
/// collectives.
template <class Slots>
class GatherPool {
 public:
  using Communicator = typename Slots::Communicator;
  using Parameter = typename Slots::Parameter;

  template <class ArenaT>
  GatherPool(Communicator& comm,
             Partition const& partition,
             ParameterStore<Slots> const& parameters,
             Staging<Slots> const& /*staging*/,
             StorageElements const& elements,
             Prefetch const& prefetch,
             ArenaT& arena)
      : comm_(&comm),
        partition_(&partition),
        parameters_(&parameters),
        prefetch_(prefetch.depth),
        slot_elements_(elements.gather_slot),
        pool_(arena.template take<Parameter>(Role::gather_pool,
                                             elements.gather_slot * elements.gather_slots)),
        slots_(static_cast<std::size_t>(elements.gather_slots)) {
    std::size_t most = 0;
    for (GatherGroup const& gathered : partition.gather_groups()) {
      std::size_t buckets = 0;
      for (std::size_t const g : gathered.groups) buckets += partition.groups()[g].bucket_count;
      most = buckets > most ? buckets : most;
    }
    for (Slot& slot : slots_) slot.tickets.resize(most);
  }

  /// Gathers a unit and keeps it until the matching `after_read`. Collective; blocks for this unit,
  /// and starts gathering the next group.
  void before_read(int unit) {
    progress(*comm_);
    follow(unit);
    int const group = group_of(unit);
    if (gathered(group).padded == 0) return;
    for (Slot& slot : slots_) {
      bool const read = slot.first_read <= slot.last_read;
      if (read && slot.users == 0 && slot.group != group) slot.group = no_group;
    }
    Slot* slot = find(group);
    if (slot == nullptr) {
      slot = vacant(true);
      if (slot == nullptr) {
        fail(ErrorKind::invalid_argument,
             {"unit ",
              unit,
              " is asked for while all ",
              slots_.size(),
              " slots of the gather pool are in use; release a unit's parameters before asking ",
              "for the next, or raise Prefetch.depth"});
      }
      start(*slot, group);
    }
    ++slot->users;
    slot->first_read = (std::min)(slot->first_read, unit);
    slot->last_read = (std::max)(slot->last_read, unit);
    prefetch(group);
    complete(*slot);
  }

  /// Gives the unit's memory back. Local, never blocks, never throws.
  void after_read(int unit) noexcept {
    int const group = group_of(unit);
    Slot* const slot = find(group);
    if (slot == nullptr || --slot->users > 0) return;
    bool const all = slot->first_read == gathered(group).first_unit &&
                     slot->last_read == gathered(group).last_unit;
    if (all) slot->group = no_group;
  }

  /// The next gathers read the shares themselves.
  void after_update(BucketSpan const& /*bucket*/) const noexcept {}

  /// A tensor of an acquired unit.
  [[nodiscard]] Parameter* tensor(int unit, std::size_t t) noexcept {
    int const group = group_of(unit);
    return partition_->in_gathered(gathered(group), t).in(memory(*find(group)));
  }

  /// Throws away what was gathered ahead: parameters are about to change. Blocks for gathers that
  /// are under way.
  void settle() {
    for (Slot& slot : slots_) evict(slot);
  }

 private:
  static constexpr int no_unit = -1;
  static constexpr int no_group = -1;
  using Slot = GatherSlot<typename Communicator::Ticket>;

  [[nodiscard]] int group_of(int unit) const noexcept {
    return static_cast<int>(partition_->gather_group_of(unit));
  }
  [[nodiscard]] GatherGroup const& gathered(int group) const noexcept {
    return partition_->gather_groups()[static_cast<std::size_t>(group)];
  }
  [[nodiscard]] Parameter* memory(Slot const& slot) const noexcept {
    return pool_.data() + static_cast<std::uint64_t>(&slot - slots_.data()) * slot_elements_;
  }

  [[nodiscard]] Slot* find(int group) noexcept {
    for (Slot& slot : slots_) {
      if (slot.group == group) return &slot;
    }
    return nullptr;
  }

  /// A slot nobody uses; with `evict_guesses` also one that was filled ahead in vain.
  [[nodiscard]] Slot* vacant(bool evict_guesses) {
    for (Slot& slot : slots_) {
      if (slot.group == no_group) return &slot;
    }
    if (!evict_guesses) return nullptr;
    for (Slot& slot : slots_) {
      if (slot.users > 0) continue;
      evict(slot);
      return &slot;
    }
    return nullptr;
  }

  void evict(Slot& slot) {
    complete(slot);
    if (slot.users == 0) slot.group = no_group;
  }

  /// Learns the direction in which the trainer walks through the units.
  void follow(int unit) noexcept {
    if (last_unit_ == no_unit || unit > last_unit_) {
      direction_ = 1;
    } else if (unit < last_unit_) {
      direction_ = -1;
    } else {
      direction_ = -direction_;
    }
    last_unit_ = unit;
  }

  void prefetch(int group) {
    auto const groups = static_cast<int>(partition_->gather_groups().size());
    int ahead = 0;
    for (int next = group + direction_; ahead < prefetch_ && next >= 0 && next < groups;
         next += direction_) {
      if (gathered(next).padded == 0) continue;
      ++ahead;
      if (find(next) != nullptr) continue;
      Slot* const slot = vacant(false);
      if (slot == nullptr) return;
      start(*slot, next);
    }
  }

  void start(Slot& slot, int group) {
    slot.group = group;
    slot.first_read = gathered(group).last_unit + 1;
    slot.last_read = gathered(group).first_unit - 1;
    partition_->for_each_bucket_of(gathered(group), [&](BucketSpan const& bucket, Place place) {
      slot.tickets[slot.under_way++] = comm_->start({.op = Op::all_gather,
                                                     .dtype = dtype_of<Parameter>,
                                                     .accumulate = dtype_of<Parameter>,
                                                     .count = bucket.shard(),
                                                     .send = parameters_->share(bucket),
                                                     .recv = place.in(memory(slot)),
                                                     .bucket = static_cast<int>(bucket.index())});
    });
  }

  void complete(Slot& slot) {
    for (std::size_t i = 0; i < slot.under_way; ++i) comm_->wait(slot.tickets[i]);
    slot.under_way = 0;
  }

  Communicator* comm_;
  Partition const* partition_;
  ParameterStore<Slots> const* parameters_;
  int prefetch_;
  std::uint64_t slot_elements_;
  std::span<Parameter> pool_;
  std::vector<Slot> slots_;
  int last_unit_ = no_unit;
  int direction_ = 1;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
