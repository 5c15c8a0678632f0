/// @file
/// What a step decided, as the host sees it: fetched when somebody asks, reported once.
#pragma once

#include "zero/base/config.hpp"
#include "zero/optimizer/api/step_options.hpp"
#include "zero/optimizer/api/step_result.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The host's copy of what the space decided.
class Outcome {
 public:
  /// @param trained  tensors that are updated unless they rest
  Outcome(Ranks& ranks, StepControl* control, AnySpace space, Kernels kernels, std::size_t trained)
      : ranks_(&ranks), control_(control), space_(space), kernels_(kernels), trained_(trained) {
    expect();
  }

  /// The copy is out of date, or will be whenever a recording is run.
  void expect() {
    stale_ = true;
    recorded_ = recorded_ || space_.capturing();
  }

  /// Fetched when it may be out of date, which after a step that was recorded is always.
  /// @param confirmed  of a step that took place; what counts steps and scales stands even where
  ///   one did not
  /// @throws Error (communication) if it is to be confirmed, and the group has ended meanwhile
  ZERO_APART [[nodiscard]] StepOutcome const& get(bool confirmed = false) const;
  /// Why a step since the last report failed, which counts as reported now, or what the last step
  /// did. Blocks if that is not known yet.
  /// @throws Error (communication) if the group has ended meanwhile
  ZERO_APART [[nodiscard]] StepFailure take(StepReport& report);

 private:
  Ranks* ranks_;
  StepControl* control_;
  AnySpace space_;
  Kernels kernels_;
  std::size_t trained_;
  mutable bool stale_ = false;
  mutable bool confirmed_ = true;
  bool recorded_ = false;
  mutable StepOutcome outcome_{};
};

#if ZERO_BODIES

ZERO_BODY StepOutcome const& Outcome::get(bool confirmed) const {
  if (stale_ || recorded_) {
    space_.download(&outcome_, &control_->outcome, sizeof(StepOutcome));
    stale_ = confirmed_ = false;
  }
  if (confirmed && !confirmed_) {
    ranks_->confirm();
    confirmed_ = true;
  }
  return outcome_;
}

ZERO_BODY StepFailure Outcome::take(StepReport& report) {
  StepOutcome const& now = get(true);
  StepFailure const failure = now.failure;
  StepTerms const& terms = now.terms;
  report = {.step = terms.step,
            .skipped = terms.skipped != 0,
            .grad_norm = terms.grad_norm,
            .clip_coefficient = terms.clip_coefficient,
            .loss_scale = terms.loss_scale,
            .weight = terms.weight,
            .stop = now.stop != 0,
            .updated = terms.skipped != 0 || terms.weight == 0.
                           ? 0
                           : static_cast<long>(trained_) - now.rested};
  if (failure == StepFailure::none) return failure;
  kernels_.call(ClearFailure{control_});
  stale_ = true;
  return failure;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
