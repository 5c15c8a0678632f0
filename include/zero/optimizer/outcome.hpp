/// @file
/// What a step decided, as the host sees it: fetched when somebody asks, reported once.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/space.hpp"
#include "zero/optimizer/api/step.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/stations/control.hpp"

#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The host's copy of what the space decided.
template <Communicator C>
class Outcome {
 public:
  using Space = typename C::Space;

  Outcome(C& comm, StepControl* control, Space space)
      : comm_(&comm), control_(control), space_(std::move(space)) {
    expect();
  }

  /// The copy is out of date, or will be whenever a recording is run.
  void expect() {
    stale_ = true;
    if constexpr (RecordingSpace<Space>) recorded_ = recorded_ || space_.capturing();
  }

  /// Fetched when it may be out of date, which after a step that was recorded is always.
  [[nodiscard]] StepOutcome const& get() const {
    if (stale_ || recorded_) {
      space_.download(&outcome_, &control_->outcome, sizeof(StepOutcome));
      stale_ = confirmed_ = false;
    }
    return outcome_;
  }
  /// The same of a step that took place; what counts steps and scales stands even where one did
  /// not.
  /// @throws Error (communication) if the group has ended meanwhile
  [[nodiscard]] StepOutcome const& confirmed() const {
    StepOutcome const& now = get();
    if (!confirmed_) confirm(*comm_);
    confirmed_ = true;
    return now;
  }

  /// What the last step did. Blocks if that is not known yet.
  /// @throws Error (data, invalid_argument) once for a step that failed
  [[nodiscard]] StepReport report() { return report_of(result()); }
  /// The same, but a step that failed is a value.
  [[nodiscard]] StepResult result() {
    if (StepFailure const failure = take_failure(); failure != StepFailure::none) {
      return error_of(failure);
    }
    return last();
  }
  /// Why a step since the last report failed, which counts as reported now.
  /// @throws Error (communication) if the group has ended meanwhile
  [[nodiscard]] StepFailure take_failure() {
    StepFailure const failure = confirmed().failure;
    if (failure != StepFailure::none) {
      space_.call(Forgive{control_});
      stale_ = true;
    }
    return failure;
  }
  /// Of an outcome that is up to date.
  [[nodiscard]] StepReport last() const noexcept {
    StepTerms const& terms = outcome_.terms;
    return {.step = terms.step,
            .skipped = terms.skipped != 0,
            .grad_norm = terms.grad_norm,
            .clip_coefficient = terms.clip_coefficient,
            .loss_scale = terms.loss_scale,
            .weight = terms.weight,
            .stop = outcome_.stop != 0};
  }

 private:
  C* comm_;
  StepControl* control_;
  [[no_unique_address]] Space space_;
  mutable bool stale_ = false;
  mutable bool confirmed_ = true;
  bool recorded_ = false;
  mutable StepOutcome outcome_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
