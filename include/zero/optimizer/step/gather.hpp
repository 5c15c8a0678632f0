/// @file
/// Slots that are filled before they are read, and full parameters of the units in use in them,
/// where a rank keeps only its share.
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
#include <optional>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A fixed number of slots for what is read next: empty, on its way, a guess that nobody reads yet,
/// or in use by so many readers. A wrong guess costs time alone: it makes room for what is read.
/// Which slot is filled with what depends on the sequence of calls alone.
template <class Key>
class SlotPool {
 public:
  struct Slot {
    std::optional<Key> holds{};  ///< nothing: it is empty
    int readers = 0;
    std::size_t under_way = 0;  ///< collectives that fill it
  };

  /// @param most  collectives that fill one slot
  SlotPool(Ranks const& ranks, std::uint64_t slots, std::size_t most)
      : most_(most),
        slots_(static_cast<std::size_t>(slots)),
        tickets_(ranks.tickets(slots_.size() * most)) {}

  [[nodiscard]] std::vector<Slot>& slots() noexcept { return slots_; }
  [[nodiscard]] std::size_t number(Slot const& slot) const noexcept {
    return static_cast<std::size_t>(&slot - slots_.data());
  }
  [[nodiscard]] Slot* find(Key const& key) noexcept {
    for (Slot& slot : slots_) {
      if (slot.holds == key) return &slot;
    }
    return nullptr;
  }

  /// The slot that holds `key`, or one that `fill(slot, key)` fills with it from now on: an empty
  /// one or, with `evict`, that of a guess. Null if there is none.
  template <class Fill>
  Slot* bring(Key const& key, bool evict, Fill const& fill) {
    if (Slot* const slot = find(key)) return slot;
    Slot* room = nullptr;
    for (Slot& slot : slots_) {
      bool const empty = !slot.holds;
      if (empty || (evict && slot.readers == 0 && room == nullptr)) room = &slot;
      if (empty) break;
    }
    if (room == nullptr) return nullptr;
    complete(*room);
    fill(*room, key);
    room->holds = key;
    return room;
  }
  /// Fills empty slots with the `ahead` keys that come after one, each `next` of the one before.
  /// @return what comes after these, if anything does and there were slots for all of them
  template <class Next, class Fill>
  std::optional<Key> look_ahead(Key key, int ahead, Next const& next, Fill const& fill) {
    std::optional<Key> wanted = next(key);
    for (; ahead > 0 && wanted; --ahead) {
      if (bring(*wanted, false, fill) == nullptr) return std::nullopt;
      wanted = next(*wanted);
    }
    return wanted;
  }

  /// Starts a collective that fills a slot.
  void start(Slot& slot, Collective const& op) {
    tickets_.start(number(slot) * most_ + slot.under_way, op);
    ++slot.under_way;
  }
  /// Waits until a slot is filled.
  void complete(Slot& slot) {
    for (std::size_t i = 0; i < slot.under_way; ++i) tickets_.wait(number(slot) * most_ + i);
    slot.under_way = 0;
  }
  /// Waits for all that is under way, and throws guesses away.
  void settle() {
    for (Slot& slot : slots_) {
      complete(slot);
      if (slot.readers == 0) slot.holds.reset();
    }
  }

 private:
  std::size_t most_;
  std::vector<Slot> slots_;
  Tickets tickets_;
};

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
  using Slots = SlotPool<int>;  ///< of gather groups
  /// The first and the last unit of a slot that were read since its gather.
  struct ReadUnits {
    int first;
    int last;
    [[nodiscard]] bool any() const noexcept { return first <= last; }
  };
  static constexpr int no_unit = -1;

  [[nodiscard]] int group_of(int unit) const noexcept {
    return static_cast<int>(partition_->gather_group_of(unit));
  }
  [[nodiscard]] GatherGroup const& gathered(int group) const noexcept {
    return partition_->gather_groups()[static_cast<std::size_t>(group)];
  }
  /// Where a group begins in a slot, in which those of a gather group lie one after the other.
  ZERO_APART [[nodiscard]] Array in_slot(Slots::Slot const& slot,
                                         int gathers,
                                         std::size_t group) const noexcept;
  /// Learns the direction in which the trainer walks through the units.
  ZERO_APART void follow(int unit) noexcept;
  /// The next group with anything to gather.
  ZERO_APART [[nodiscard]] std::optional<int> next(int group) const noexcept;
  ZERO_APART void start(Slots::Slot& slot, int group);

  Ranks* ranks_;
  Partition const* partition_;
  ParameterStore const* parameters_;
  int prefetch_;
  std::size_t slot_bytes_;
  std::byte* pool_;
  Slots slots_;
  std::vector<ReadUnits> read_;  ///< by slot
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
      slot_bytes_(static_cast<std::size_t>(elements.gather_slot_bytes)),
      pool_(
          arena.take(Role::gather_pool, elements.gather_slot_bytes * elements.gather_slots).data()),
      slots_(ranks, elements.gather_slots, most_gathered_buckets(partition)),
      read_(static_cast<std::size_t>(elements.gather_slots)) {}

ZERO_BODY void GatherPool::before_read(int unit) {
  ranks_->progress();
  follow(unit);
  int const group = group_of(unit);
  if (gathered(group).padded == 0) return;
  for (Slots::Slot& slot : slots_.slots()) {
    bool const read = read_[slots_.number(slot)].any();
    if (read && slot.readers == 0 && slot.holds != group) slot.holds.reset();
  }
  auto const fill = [this](Slots::Slot& slot, int what) { start(slot, what); };
  Slots::Slot* const slot = slots_.bring(group, true, fill);
  if (slot == nullptr) {
    fail(ErrorKind::invalid_argument,
         {"unit ",
          unit,
          " is asked for while all ",
          slots_.slots().size(),
          " slots of the gather pool are in use; release a unit's parameters before asking ",
          "for the next, or raise Prefetch.depth"});
  }
  ++slot->readers;
  ReadUnits& read = read_[slots_.number(*slot)];
  read = {(std::min)(read.first, unit), (std::max)(read.last, unit)};
  slots_.look_ahead(
      group, prefetch_, [this](int what) { return next(what); }, fill);
  slots_.complete(*slot);
}

ZERO_BODY void GatherPool::after_read(int unit) noexcept {
  int const group = group_of(unit);
  Slots::Slot* const slot = slots_.find(group);
  if (slot == nullptr || --slot->readers > 0) return;
  ReadUnits const& read = read_[slots_.number(*slot)];
  bool const all =
      read.first == gathered(group).first_unit && read.last == gathered(group).last_unit;
  if (all) slot->holds.reset();
}

ZERO_BODY std::byte* GatherPool::tensor(int unit, std::size_t t) noexcept {
  int const group = group_of(unit);
  std::size_t const own = partition_->group_of(t);
  return in_slot(*slots_.find(group), group, own).at(partition_->in_group(t));
}

ZERO_BODY Array GatherPool::in_slot(Slots::Slot const& slot,
                                    int gathers,
                                    std::size_t group) const noexcept {
  std::byte* begin = pool_ + slots_.number(slot) * slot_bytes_;
  for (std::size_t const g : gathered(gathers).groups) {
    BucketGroup const& other = partition_->groups()[g];
    Array const here{begin, parameters_->dtype(other.kind)};
    if (g == group) return here;
    begin = here.at(other.padded);
  }
  return {};
}

ZERO_BODY void GatherPool::settle() { slots_.settle(); }

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

ZERO_BODY std::optional<int> GatherPool::next(int group) const noexcept {
  auto const groups = static_cast<int>(partition_->gather_groups().size());
  for (int next = group + direction_; next >= 0 && next < groups; next += direction_) {
    if (gathered(next).padded > 0) return next;
  }
  return std::nullopt;
}

ZERO_BODY void GatherPool::start(Slots::Slot& slot, int group) {
  read_[slots_.number(slot)] = {gathered(group).last_unit + 1, gathered(group).first_unit - 1};
  partition_->for_each_bucket_of(gathered(group), [&](BucketSpan const& bucket) {
    Array const share = parameters_->share(bucket);
    slots_.start(slot,
                 {.op = Op::all_gather,
                  .dtype = share.dtype,
                  .accumulate = share.dtype,
                  .count = bucket.shard(),
                  .send = share.first,
                  .recv = in_slot(slot, group, bucket.group()).at(bucket.in_group()),
                  .bucket = static_cast<int>(bucket.index())});
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
