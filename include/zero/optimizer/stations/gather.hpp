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

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Memory for one unit, and the gathers that fill it.
template <class Ticket>
struct GatherSlot {
  int unit = -1;
  int users = 0;
  std::size_t under_way = 0;
  std::vector<Ticket> tickets;
};

/// Gathers units into `prefetch + 1` slots of the size of the largest unit.
///
/// The next unit is requested before the current one is given out, following the direction of the
/// last two acquisitions. Which gathers are started depends only on the sequence of acquisitions,
/// so ranks that run the same loop start the same collectives.
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
    for (int unit = 0; unit < partition.placement().unit_count(); ++unit) {
      std::size_t buckets = 0;
      for (std::size_t const g : partition.groups_of(unit)) {
        buckets += partition.groups()[g].bucket_count;
      }
      most = buckets > most ? buckets : most;
    }
    for (Slot& slot : slots_) slot.tickets.resize(most);
  }

  /// Gathers a unit and keeps it until the matching `after_read`. Collective; blocks for this unit,
  /// and starts gathering the next.
  void before_read(int unit) {
    progress(*comm_);
    follow(unit);
    if (partition_->unit_elements(unit) == 0) return;
    Slot* slot = find(unit);
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
      start(*slot, unit);
    }
    ++slot->users;
    prefetch(unit);
    complete(*slot);
  }

  /// Gives the unit's memory back. Local, never blocks, never throws.
  void after_read(int unit) noexcept {
    Slot* const slot = find(unit);
    if (slot == nullptr) return;
    if (--slot->users == 0) slot->unit = no_unit;
  }

  /// The next gathers read the shares themselves.
  void after_update(BucketSpan const& /*bucket*/) const noexcept {}

  /// A tensor of an acquired unit.
  [[nodiscard]] Parameter* tensor(int unit, std::size_t t) noexcept {
    return partition_->in_unit(unit, t).in(memory(*find(unit)));
  }

  /// Throws away what was gathered ahead: parameters are about to change. Blocks for gathers that
  /// are under way.
  void settle() {
    for (Slot& slot : slots_) evict(slot);
  }

 private:
  static constexpr int no_unit = -1;
  using Slot = GatherSlot<typename Communicator::Ticket>;

  [[nodiscard]] Parameter* memory(Slot const& slot) const noexcept {
    return pool_.data() + static_cast<std::uint64_t>(&slot - slots_.data()) * slot_elements_;
  }

  [[nodiscard]] Slot* find(int unit) noexcept {
    for (Slot& slot : slots_) {
      if (slot.unit == unit) return &slot;
    }
    return nullptr;
  }

  /// A slot nobody uses; with `evict_guesses` also one that was filled ahead in vain.
  [[nodiscard]] Slot* vacant(bool evict_guesses) {
    for (Slot& slot : slots_) {
      if (slot.unit == no_unit) return &slot;
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
    if (slot.users == 0) slot.unit = no_unit;
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

  void prefetch(int unit) {
    int const units = partition_->placement().unit_count();
    int ahead = 0;
    for (int next = unit + direction_; ahead < prefetch_ && next >= 0 && next < units;
         next += direction_) {
      if (partition_->unit_elements(next) == 0) continue;
      ++ahead;
      if (find(next) != nullptr) continue;
      Slot* const slot = vacant(false);
      if (slot == nullptr) return;
      start(*slot, next);
    }
  }

  void start(Slot& slot, int unit) {
    slot.unit = unit;
    partition_->for_each_bucket_of(unit, [&](BucketSpan const& bucket, Place in_unit) {
      slot.tickets[slot.under_way++] = comm_->start({.op = Op::all_gather,
                                                     .dtype = dtype_of<Parameter>,
                                                     .accumulate = dtype_of<Parameter>,
                                                     .count = bucket.shard(),
                                                     .send = parameters_->share(bucket),
                                                     .recv = in_unit.in(memory(slot)),
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
