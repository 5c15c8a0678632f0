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
  /// There is no such group.
  static constexpr std::size_t none = SIZE_MAX;

  /// @param in_full  micro-steps add up in full gradients, which travel after the last one
  /// @param in_sums  micro-steps add up in sums of this rank's share
  ZERO_APART ZERO_COLD ReductionOrder(Partition const& partition, bool in_full, bool in_sums);

  /// Does memory of gradients have to stay where it is? Whether a bucket travels already must not
  /// matter to the trainer.
  [[nodiscard]] bool opened() const noexcept { return opened_ && !finished_; }
  /// Has this step seen gradients, or a micro-step?
  [[nodiscard]] bool begun() const noexcept {
    return opened_ || declared_ || micro_steps_ > 0 || finished_;
  }
  /// Is everything reduced?
  [[nodiscard]] bool finished() const noexcept { return finished_; }
  [[nodiscard]] int micro_steps() const noexcept { return micro_steps_; }
  /// Changes whenever full gradients lose their memory, or may: guards remember it.
  [[nodiscard]] std::uint64_t epoch() const noexcept { return epoch_; }
  /// @throws Error (invalid_argument) unless a guard of that epoch may still reach the unit
  ZERO_APART void require_live(int unit, std::uint64_t epoch) const;

  /// The trainer asks for a unit's gradients.
  ZERO_APART void open(int unit);
  /// A group has memory to add to.
  void fill(std::size_t g) noexcept { phase_[g] = Phase::filling; }
  [[nodiscard]] bool empty(std::size_t g) const noexcept {
    return phase_[g] == Phase::empty || phase_[g] == Phase::absent;
  }
  /// Has the whole of a group arrived?
  [[nodiscard]] bool reduced(std::size_t g) const noexcept { return phase_[g] == Phase::reduced; }
  /// Says whom a unit waits for that finds no memory.
  ZERO_APART [[noreturn]] void refuse_full_pool(int unit) const;

  /// The unit's gradients of this micro-step are complete, says a guard of that epoch.
  ZERO_APART void close(int unit, std::uint64_t epoch);
  /// The unit has no gradients in this micro-step.
  ZERO_APART void declare(int unit);
  /// A tensor of the unit has none.
  ZERO_APART void declare_tensor(int unit);
  /// Has the unit been asked for, in this micro-step, and not been closed?
  [[nodiscard]] bool unit_open(int unit) const noexcept {
    return unit_reduced_[static_cast<std::size_t>(unit)] == 0 &&
           unit_opened_[static_cast<std::size_t>(unit)] != 0;
  }
  /// With full gradients kept, nothing travels before the last micro-step.
  [[nodiscard]] bool travels_now() const noexcept {
    return !in_full_ || last_ || micro_steps_ == 0;
  }

  /// Nothing more is added to any group.
  ZERO_APART void complete_all() noexcept;

  /// The groups that may travel now, in the order in which they do: those whose turn it is and that
  /// are complete. Some of them may have left before their turn.
  ZERO_APART [[nodiscard]] std::span<std::size_t const> ready() const noexcept;
  /// Does the group travel, or has it arrived?
  [[nodiscard]] bool left(std::size_t g) const noexcept { return phase_[g] >= Phase::travelling; }
  /// The first group that is complete and has memory.
  ZERO_APART [[nodiscard]] std::size_t first_complete() const noexcept;
  /// A group begins to travel.
  ZERO_APART void launch(std::size_t g) noexcept;
  /// One bucket of a group has arrived.
  /// @returns whether it was the last one
  bool arrive(std::size_t g) noexcept {
    if (--buckets_left_[g] == 0) phase_[g] = Phase::reduced;
    return phase_[g] == Phase::reduced;
  }

  /// May another micro-step begin, and does it end one?
  /// @throws Error (invalid_argument) if none may
  ZERO_APART [[nodiscard]] bool follows_another() const;
  /// Begins a micro-step; `last` says that no other follows in this step.
  void begin_micro_step(bool last) noexcept {
    ++micro_steps_;
    last_ = last;
  }
  /// Ends a micro-step whose gradients stay where they are, or have travelled.
  ZERO_APART void end_micro_step() noexcept;
  /// From now on everything travels.
  void let_travel() noexcept { last_ = true; }
  /// Everything has travelled.
  void finish() noexcept {
    finished_ = true;
    ++epoch_;
  }
  /// A step begins.
  ZERO_APART void reset() noexcept;

 private:
  /// Of a group that is absent nothing more is said, and no memory was asked for.
  enum class Phase : std::uint8_t { empty, absent, filling, complete, travelling, reduced };

  ZERO_APART [[noreturn]] static void refuse(int unit, Message const& why);
  ZERO_APART void forget_units() noexcept;
  ZERO_APART void end(int unit);
  /// The group whose turn it is.
  [[nodiscard]] std::size_t next() const noexcept {
    auto const& order = partition_->reduction_order();
    return next_ < order.size() ? order[next_] : none;
  }
  /// Nothing more is added to a group.
  void complete(std::size_t g) noexcept {
    if (phase_[g] == Phase::empty) phase_[g] = Phase::absent;
    if (phase_[g] == Phase::filling) phase_[g] = Phase::complete;
  }

  Partition const* partition_;
  bool in_full_;
  bool in_sums_;
  std::vector<Phase> phase_;
  std::vector<std::size_t> units_done_;
  std::vector<std::size_t> buckets_left_;
  std::vector<std::uint8_t> unit_reduced_;
  std::vector<std::uint8_t> unit_opened_;
  std::size_t next_ = 0;
  std::uint64_t epoch_ = 0;
  int micro_steps_ = 0;
  bool opened_ = false;
  bool declared_ = false;
  bool last_ = false;
  bool finished_ = false;
};

#if ZERO_BODIES

ZERO_BODY ReductionOrder::ReductionOrder(Partition const& partition, bool in_full, bool in_sums)
    : partition_(&partition),
      in_full_(in_full),
      in_sums_(in_sums),
      phase_(partition.groups().size(), Phase::empty),
      units_done_(partition.groups().size(), 0),
      buckets_left_(partition.groups().size(), 0),
      unit_reduced_(static_cast<std::size_t>(partition.placement().unit_count()), 0),
      unit_opened_(unit_reduced_) {}

ZERO_BODY void ReductionOrder::refuse(int unit, Message const& why) {
  fail(ErrorKind::invalid_argument, {"unit ", unit, " ", why});
}

ZERO_BODY void ReductionOrder::require_live(int unit, std::uint64_t epoch) const {
  if (epoch != epoch_) {
    refuse(unit,
           "is used through gradients that ended with their step or micro-step, or in "
           "reduce_all() or grad_norm(); ask for them again");
  }
  if (unit_reduced_[static_cast<std::size_t>(unit)]) {
    refuse(unit,
           {"was already ",
            unit_reduced_[static_cast<std::size_t>(unit)] == 1 ? "reduced" : "declared absent",
            " in this micro-step; call micro_step() before the next micro-batch"});
  }
}

ZERO_BODY void ReductionOrder::open(int unit) {
  require_live(unit, epoch_);
  if (finished_) {
    refuse(unit,
           "is asked for after the gradients of this step were reduced; call step() or "
           "discard_gradients() first");
  }
  opened_ = true;
  unit_opened_[static_cast<std::size_t>(unit)] = 1;
}

ZERO_BODY void ReductionOrder::refuse_full_pool(int unit) const {
  int missing = -1;
  if (next() != none) {
    for (int const each : partition_->groups()[next()].units) {
      if (!unit_reduced_[static_cast<std::size_t>(each)]) missing = each;
    }
  }
  refuse(unit,
         {"finds the gradient pool full of units that are yet to be reduced; unit ",
          missing,
          " is the next one in the order of a backward pass. Pass a unit's gradients to reduce() "
          "before asking for those of further units"});
}

ZERO_BODY std::size_t ReductionOrder::first_complete() const noexcept {
  for (std::size_t const g : partition_->reduction_order()) {
    if (phase_[g] == Phase::complete) return g;
  }
  return none;
}

ZERO_BODY void ReductionOrder::complete_all() noexcept {
  for (std::size_t g = 0; g < phase_.size(); ++g) complete(g);
}

ZERO_BODY std::span<std::size_t const> ReductionOrder::ready() const noexcept {
  auto const order = std::span(partition_->reduction_order()).subspan(next_);
  auto const waits = [&](std::size_t g) {
    return phase_[g] == Phase::empty || phase_[g] == Phase::filling;
  };
  return {order.begin(), std::find_if(order.begin(), order.end(), waits)};
}

ZERO_BODY void ReductionOrder::declare_tensor(int unit) {
  if (finished_) {
    refuse(unit, "is declared absent after the gradients of this step were reduced");
  }
  require_live(unit, epoch_);
  declared_ = true;
}

ZERO_BODY void ReductionOrder::declare(int unit) {
  declare_tensor(unit);
  // Who has asked for it passes it to reduce().
  if (unit_open(unit)) return;
  end(unit);
  unit_reduced_[static_cast<std::size_t>(unit)] = 2;
}

ZERO_BODY void ReductionOrder::close(int unit, std::uint64_t epoch) {
  require_live(unit, epoch);
  end(unit);
}

ZERO_BODY void ReductionOrder::end(int unit) {
  unit_reduced_[static_cast<std::size_t>(unit)] = 1;
  for (std::size_t const g : partition_->groups_of(unit)) {
    if (++units_done_[g] == partition_->groups()[g].units.size()) complete(g);
  }
}

ZERO_BODY void ReductionOrder::launch(std::size_t g) noexcept {
  buckets_left_[g] = partition_->groups()[g].bucket_count;
  phase_[g] = buckets_left_[g] > 0 ? Phase::travelling : Phase::reduced;
  while (next() != none && left(next())) ++next_;
}

ZERO_BODY bool ReductionOrder::follows_another() const {
  if (finished_) {
    fail(ErrorKind::invalid_argument,
         "micro_step() after the gradients of this step were reduced; call step() first");
  }
  if (micro_steps_ == 0) {
    if (opened_ || declared_) {
      fail(ErrorKind::invalid_argument,
           "the first micro_step() of a step must come before its first gradients");
    }
    return false;
  }
  if (!in_full_ && !in_sums_) {
    fail(ErrorKind::invalid_argument,
         "a second micro_step() in one step needs AccumulateFull or AccumulateShard");
  }
  if (last_) {
    fail(ErrorKind::invalid_argument, "micro_step() after the one that was said to be last");
  }
  return true;
}

ZERO_BODY void ReductionOrder::end_micro_step() noexcept {
  for (Phase& phase : phase_) {
    if (!in_full_) {
      phase = Phase::empty;
    } else if (phase == Phase::complete) {
      phase = Phase::filling;
    } else if (phase == Phase::absent) {
      phase = Phase::empty;
    }
  }
  opened_ = opened_ && in_full_;
  forget_units();
}

ZERO_BODY void ReductionOrder::reset() noexcept {
  for (Phase& phase : phase_) phase = Phase::empty;
  forget_units();
  micro_steps_ = 0;
  opened_ = false;
  declared_ = false;
  last_ = false;
  finished_ = false;
}

ZERO_BODY void ReductionOrder::forget_units() noexcept {
  ++epoch_;
  for (std::uint8_t& reduced : unit_reduced_) reduced = 0;
  for (std::uint8_t& opened : unit_opened_) opened = 0;
  for (std::size_t& done : units_done_) done = 0;
  next_ = 0;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
