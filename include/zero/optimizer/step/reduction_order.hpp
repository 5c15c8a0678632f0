/// @file
/// In which order buckets travel, and what a trainer may do at which point of a step.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/partition.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// How far the gradients of each group are, and which group travels next. Moves no data.
///
/// Groups travel in one order fixed at construction (the order of a backward pass), not in the
/// order in which they happen to be complete: ranks that finish units in different orders, or give
/// no gradients for some, still agree (as long as no gathers run in between). Only where all memory
/// of a pool is taken by groups that are complete does one leave before its turn: who works in
/// another order does so on every rank.
class ReductionOrder {
 public:
  /// A group that is to travel.
  struct Departure {
    static constexpr std::size_t none = SIZE_MAX;

    std::size_t group = none;
    bool absent = false;  ///< it has no memory yet, and travels as zeros

    explicit operator bool() const noexcept { return group != none; }
  };

  /// @param in_full  micro-steps add up in full gradients, which travel after the last one
  /// @param in_sums  micro-steps add up in sums of this rank's share
  ZERO_APART ZERO_COLD ReductionOrder(Partition const& partition, bool in_full, bool in_sums);

  /// Does memory of gradients have to stay where it is? Whether a bucket travels already must not
  /// matter to the trainer.
  [[nodiscard]] bool opened() const noexcept { return now_.opened && !now_.finished; }
  /// Has this step seen gradients, or a micro-step?
  [[nodiscard]] bool begun() const noexcept {
    return now_.opened || now_.declared || now_.micro_steps > 0 || now_.finished;
  }
  /// Is everything reduced?
  [[nodiscard]] bool finished() const noexcept { return now_.finished; }
  [[nodiscard]] int micro_steps() const noexcept { return now_.micro_steps; }
  /// Changes whenever full gradients lose their memory, or may: guards remember it.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// @throws Error (invalid_argument) unless a guard of that epoch may still reach the unit
  ZERO_APART void require_live(int unit, std::uint64_t epoch) const;

  /// The trainer asks for a unit's gradients.
  ZERO_APART void open(int unit);
  /// A group has memory to add to.
  void fill(std::size_t g) noexcept { groups_[g].phase = Phase::filling; }
  [[nodiscard]] bool empty(std::size_t g) const noexcept {
    return groups_[g].phase == Phase::empty || groups_[g].phase == Phase::absent;
  }
  /// Has the whole of a group arrived?
  [[nodiscard]] bool reduced(std::size_t g) const noexcept {
    return groups_[g].phase == Phase::reduced;
  }
  /// Says whom a unit waits for that finds no memory.
  ZERO_APART [[noreturn]] void refuse_full_pool(int unit) const;

  /// The unit's gradients of this micro-step are complete, says a guard of that epoch.
  ZERO_APART void close(int unit, std::uint64_t epoch);
  /// The unit has no gradients in this micro-step.
  ZERO_APART void declare(int unit);
  /// A tensor of the unit has none.
  ZERO_APART void declare_tensor(int unit);
  /// Has the trainer been given memory for one of these in this micro-step?
  [[nodiscard]] bool asked_for(std::vector<int> const& units) const noexcept {
    return std::any_of(units.begin(), units.end(), [&](int unit) {
      return at(unit) == UnitState::open || at(unit) == UnitState::reduced;
    });
  }

  /// Nothing more is added to any group.
  ZERO_APART void complete_all() noexcept;

  /// The group that may travel now, if there is one: that whose turn it is, once it is complete.
  /// With full gradients kept, none does before the last micro-step.
  /// @param early  or the first one that is complete and has memory
  ZERO_APART [[nodiscard]] Departure next(bool early = false) noexcept;
  /// It begins to travel.
  void launch(std::size_t g) noexcept {
    std::size_t const buckets = partition_->groups()[g].bucket_count;
    groups_[g].buckets_left = buckets;
    groups_[g].phase = buckets > 0 ? Phase::travelling : Phase::reduced;
  }
  /// One bucket of a group has arrived.
  /// @returns whether it was the last one
  bool arrive(std::size_t g) noexcept {
    if (--groups_[g].buckets_left == 0) groups_[g].phase = Phase::reduced;
    return reduced(g);
  }

  /// May another micro-step begin, and does it end one?
  /// @throws Error (invalid_argument) if none may
  ZERO_APART [[nodiscard]] bool follows_another() const;
  /// Begins a micro-step; `last` says that no other follows in this step.
  void begin_micro_step(bool last) noexcept {
    ++now_.micro_steps;
    now_.last = last;
  }
  /// Ends a micro-step whose gradients stay where they are, or have travelled.
  ZERO_APART void end_micro_step() noexcept;
  /// From now on everything travels.
  void let_travel() noexcept { now_.last = true; }
  /// Everything has travelled.
  void finish() noexcept {
    now_.finished = true;
    ++epoch_;
  }
  /// A step begins.
  ZERO_APART void reset() noexcept;

 private:
  /// Of a group that is absent nothing more is said, and no memory was asked for.
  enum class Phase : std::uint8_t { empty, absent, filling, complete, travelling, reduced };
  /// Of a unit, in a micro-step.
  enum class UnitState : std::uint8_t { untouched, open, reduced, absent };
  struct GroupState {
    Phase phase = Phase::empty;
    std::size_t units_done = 0;
    std::size_t buckets_left = 0;
  };
  struct Now {
    int micro_steps = 0;
    bool opened = false;
    bool declared = false;
    bool last = false;
    bool finished = false;
  };

  ZERO_APART [[noreturn]] static void refuse(int unit, Message const& why);
  /// Nothing more is added to a unit, which is reduced or absent.
  ZERO_APART void end(int unit, UnitState as);
  [[nodiscard]] UnitState& at(int unit) noexcept { return units_[static_cast<std::size_t>(unit)]; }
  [[nodiscard]] UnitState at(int unit) const noexcept {
    return units_[static_cast<std::size_t>(unit)];
  }
  [[nodiscard]] static bool is_done(UnitState unit) noexcept { return unit >= UnitState::reduced; }
  /// Nothing more is added to a group.
  static void complete(GroupState& group) noexcept {
    if (group.phase == Phase::empty) group.phase = Phase::absent;
    if (group.phase == Phase::filling) group.phase = Phase::complete;
  }

  Partition const* partition_;
  bool in_full_;
  bool in_sums_;
  std::vector<GroupState> groups_;
  std::vector<UnitState> units_;
  std::size_t next_ = 0;  ///< whose turn it is
  std::uint64_t epoch_ = 0;
  Now now_{};
};

#if ZERO_BODIES

ZERO_BODY ReductionOrder::ReductionOrder(Partition const& partition, bool in_full, bool in_sums)
    : partition_(&partition),
      in_full_(in_full),
      in_sums_(in_sums),
      groups_(partition.groups().size()),
      units_(static_cast<std::size_t>(partition.placement().unit_count()), UnitState::untouched) {}

ZERO_BODY void ReductionOrder::refuse(int unit, Message const& why) {
  fail(ErrorKind::invalid_argument, {"unit ", unit, " ", why});
}

ZERO_BODY void ReductionOrder::require_live(int unit, std::uint64_t epoch) const {
  if (epoch != epoch_) {
    refuse(unit,
           "is used through gradients that ended with their step or micro-step, or in "
           "reduce_all() or grad_norm(); ask for them again");
  }
  if (is_done(at(unit))) {
    refuse(unit,
           {"was already ",
            at(unit) == UnitState::reduced ? "reduced" : "declared absent",
            " in this micro-step; call micro_step() before the next micro-batch"});
  }
}

ZERO_BODY void ReductionOrder::open(int unit) {
  require_live(unit, epoch_);
  if (now_.finished) {
    refuse(unit,
           "is asked for after the gradients of this step were reduced; call step() or "
           "discard_gradients() first");
  }
  now_.opened = true;
  at(unit) = UnitState::open;
}

ZERO_BODY void ReductionOrder::refuse_full_pool(int unit) const {
  int missing = -1;
  auto const& order = partition_->reduction_order();
  if (next_ < order.size()) {
    for (int const each : partition_->groups()[order[next_]].units) {
      if (!is_done(at(each))) missing = each;
    }
  }
  refuse(unit,
         {"finds the gradient pool full of units that are yet to be reduced; unit ",
          missing,
          " is the next one in the order of a backward pass. Pass a unit's gradients to reduce() "
          "before asking for those of further units"});
}

ZERO_BODY void ReductionOrder::complete_all() noexcept {
  for (GroupState& group : groups_) complete(group);
}

ZERO_BODY ReductionOrder::Departure ReductionOrder::next(bool early) noexcept {
  if (in_full_ && !now_.last && now_.micro_steps > 0) return {};
  auto const& order = partition_->reduction_order();
  auto const has_left = [&](std::size_t i) { return groups_[order[i]].phase >= Phase::travelling; };
  while (next_ < order.size() && has_left(next_)) ++next_;
  for (std::size_t i = next_; i < order.size(); ++i) {
    Phase const phase = groups_[order[i]].phase;
    if (phase == Phase::complete) return {order[i]};
    if (early) continue;
    return phase == Phase::absent ? Departure{order[i], true} : Departure{};
  }
  return {};
}

ZERO_BODY void ReductionOrder::declare_tensor(int unit) {
  if (now_.finished) {
    refuse(unit, "is declared absent after the gradients of this step were reduced");
  }
  require_live(unit, epoch_);
  now_.declared = true;
}

ZERO_BODY void ReductionOrder::declare(int unit) {
  declare_tensor(unit);
  // Who has asked for it passes it to reduce().
  if (at(unit) != UnitState::open) end(unit, UnitState::absent);
}

ZERO_BODY void ReductionOrder::close(int unit, std::uint64_t epoch) {
  require_live(unit, epoch);
  end(unit, UnitState::reduced);
}

ZERO_BODY void ReductionOrder::end(int unit, UnitState as) {
  at(unit) = as;
  for (std::size_t const g : partition_->groups_of(unit)) {
    if (++groups_[g].units_done == partition_->groups()[g].units.size()) complete(groups_[g]);
  }
}

ZERO_BODY bool ReductionOrder::follows_another() const {
  if (now_.finished) {
    fail(ErrorKind::invalid_argument,
         "micro_step() after the gradients of this step were reduced; call step() first");
  }
  if (now_.micro_steps == 0) {
    if (now_.opened || now_.declared) {
      fail(ErrorKind::invalid_argument,
           "the first micro_step() of a step must come before its first gradients");
    }
    return false;
  }
  if (!in_full_ && !in_sums_) {
    fail(ErrorKind::invalid_argument,
         "a second micro_step() in one step needs AccumulateFull or AccumulateShard");
  }
  if (now_.last) {
    fail(ErrorKind::invalid_argument, "micro_step() after the one that was said to be last");
  }
  return true;
}

ZERO_BODY void ReductionOrder::end_micro_step() noexcept {
  auto const stays = [&](GroupState const& group) {
    return in_full_ && (group.phase == Phase::filling || group.phase == Phase::complete);
  };
  for (GroupState& group : groups_) group = {stays(group) ? Phase::filling : Phase::empty};
  for (UnitState& unit : units_) unit = UnitState::untouched;
  next_ = 0;
  ++epoch_;
  now_.opened = now_.opened && in_full_;
}

ZERO_BODY void ReductionOrder::reset() noexcept {
  for (GroupState& group : groups_) group = {};
  for (UnitState& unit : units_) unit = UnitState::untouched;
  next_ = 0;
  ++epoch_;
  now_ = {};
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
