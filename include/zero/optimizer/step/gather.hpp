/// @file
/// Full parameters of the units in use, where a rank keeps only its share: a fixed pool, filled
/// ahead of time.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/optimizer/held/arena.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Gathers units into `prefetch + 1` slots of the size of the largest gather group.
///
/// The next group is requested before the current one is given out, following the direction of the
/// last two acquisitions. A group that nobody uses stays until all of its units were read, by the
/// first and the last one, or another group is. Which gathers are started depends only on the
/// sequence of acquisitions and releases, so ranks that run the same loop start the same
/// collectives.
class GatherPool {
 public:
  ZERO_APART ZERO_COLD GatherPool(Ranks& ranks,
                                  Partition const& partition,
                                  ParameterStore const& parameters,
                                  StorageElements const& elements,
                                  int prefetch,
                                  Arena& arena);

  /// Gathers a unit and keeps it until the matching `after_read`. Collective; blocks for this unit,
  /// and starts gathering the next group.
  ZERO_APART void before_read(int unit);
  /// Gives the unit's memory back. Local, never blocks, never throws.
  ZERO_APART void after_read(int unit) noexcept;
  /// A tensor of an acquired unit.
  ZERO_APART [[nodiscard]] std::byte* tensor(int unit, std::size_t t) noexcept;
  /// Throws away what was gathered ahead: parameters are about to change. Blocks for gathers that
  /// are under way.
  ZERO_APART void settle();

 private:
  /// Memory for one gather group, and the gathers that fill it.
  struct Slot {
    int group = no_group;
    int users = 0;
    int first_read = 0;  ///< the first and the last of its units that were read since the gather
    int last_read = -1;
    std::size_t under_way = 0;
  };
  static constexpr int no_unit = -1;
  static constexpr int no_group = -1;

  [[nodiscard]] int group_of(int unit) const noexcept {
    return static_cast<int>(partition_->gather_group_of(unit));
  }
  [[nodiscard]] GatherGroup const& gathered(int group) const noexcept {
    return partition_->gather_groups()[static_cast<std::size_t>(group)];
  }
  [[nodiscard]] std::size_t number(Slot const& slot) const noexcept {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  [[nodiscard]] Array memory(Slot const& slot) const noexcept {
    return pool_.from(number(slot) * slot_elements_);
  }
  /// Where the tickets of a slot begin.
  [[nodiscard]] std::size_t place(Slot const& slot) const noexcept {
    return number(slot) * most_buckets_;
  }

  ZERO_APART [[nodiscard]] Slot* find(int group) noexcept;
  /// A slot nobody uses; with `evict_guesses` also one that was filled ahead in vain.
  ZERO_APART [[nodiscard]] Slot* vacant(bool evict_guesses);
  ZERO_APART void evict(Slot& slot);
  /// Learns the direction in which the trainer walks through the units.
  ZERO_APART void follow(int unit) noexcept;
  ZERO_APART void prefetch(int group);
  ZERO_APART void start(Slot& slot, int group);
  ZERO_APART void complete(Slot& slot);

  Ranks* ranks_;
  Partition const* partition_;
  ParameterStore const* parameters_;
  int prefetch_;
  std::uint64_t slot_elements_;
  std::size_t most_buckets_;  ///< of a gather group
  Array pool_;
  std::vector<Slot> slots_;
  Tickets tickets_;
  int last_unit_ = no_unit;
  int direction_ = 1;
};

#if ZERO_BODIES

/// Buckets of the gather group that has most.
ZERO_APART [[nodiscard]] std::size_t most_gathered_buckets(Partition const& partition);
ZERO_BODY std::size_t most_gathered_buckets(Partition const& partition) {
  std::size_t most = 0;
  for (GatherGroup const& gathered : partition.gather_groups()) {
    std::size_t buckets = 0;
    for (std::size_t const g : gathered.groups) buckets += partition.groups()[g].bucket_count;
    most = (std::max)(most, buckets);
  }
  return most;
}

ZERO_BODY GatherPool::GatherPool(Ranks& ranks,
                                 Partition const& partition,
                                 ParameterStore const& parameters,
                                 StorageElements const& elements,
                                 int prefetch,
                                 Arena& arena)
    : ranks_(&ranks),
      partition_(&partition),
      parameters_(&parameters),
      prefetch_(prefetch),
      slot_elements_(elements.gather_slot),
      most_buckets_(most_gathered_buckets(partition)),
      pool_(arena.take(
          Role::gather_pool, elements.gather_slot * elements.gather_slots, parameters.dtype())),
      slots_(static_cast<std::size_t>(elements.gather_slots)),
      tickets_(ranks.tickets(slots_.size() * most_buckets_)) {}

ZERO_BODY void GatherPool::before_read(int unit) {
  ranks_->progress();
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

ZERO_BODY void GatherPool::after_read(int unit) noexcept {
  int const group = group_of(unit);
  Slot* const slot = find(group);
  if (slot == nullptr || --slot->users > 0) return;
  bool const all = slot->first_read == gathered(group).first_unit &&
                   slot->last_read == gathered(group).last_unit;
  if (all) slot->group = no_group;
}

ZERO_BODY std::byte* GatherPool::tensor(int unit, std::size_t t) noexcept {
  int const group = group_of(unit);
  return memory(*find(group)).at(partition_->in_gathered(gathered(group), t));
}

ZERO_BODY void GatherPool::settle() {
  for (Slot& slot : slots_) evict(slot);
}

ZERO_BODY GatherPool::Slot* GatherPool::find(int group) noexcept {
  for (Slot& slot : slots_) {
    if (slot.group == group) return &slot;
  }
  return nullptr;
}

ZERO_BODY GatherPool::Slot* GatherPool::vacant(bool evict_guesses) {
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

ZERO_BODY void GatherPool::evict(Slot& slot) {
  complete(slot);
  if (slot.users == 0) slot.group = no_group;
}

ZERO_BODY void GatherPool::follow(int unit) noexcept {
  if (last_unit_ == no_unit || unit > last_unit_) {
    direction_ = 1;
  } else if (unit < last_unit_) {
    direction_ = -1;
  } else {
    direction_ = -direction_;
  }
  last_unit_ = unit;
}

ZERO_BODY void GatherPool::prefetch(int group) {
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

ZERO_BODY void GatherPool::start(Slot& slot, int group) {
  slot.group = group;
  slot.first_read = gathered(group).last_unit + 1;
  slot.last_read = gathered(group).first_unit - 1;
  partition_->for_each_bucket_of(gathered(group), [&](BucketSpan const& bucket, Place where) {
    tickets_.start(place(slot) + slot.under_way,
                   {.op = Op::all_gather,
                    .dtype = pool_.dtype,
                    .accumulate = pool_.dtype,
                    .count = bucket.shard(),
                    .send = parameters_->share(bucket).first,
                    .recv = memory(slot).at(where),
                    .bucket = static_cast<int>(bucket.index())});
    ++slot.under_way;
  });
}

ZERO_BODY void GatherPool::complete(Slot& slot) {
  for (std::size_t i = 0; i < slot.under_way; ++i) tickets_.wait(place(slot) + i);
  slot.under_way = 0;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
