/// @file
/// What a step is told and what it reports.
#pragma once

#include "zero/base/config.hpp"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// What to do about gradients that are not finite where no loss scale watches for them. Where one
/// does, steps are skipped, and fail once `LossScaleOptions::patience` says so.
enum class NonFinite : std::uint8_t {
  fail,  ///< Error (data) on every rank: thrown, or returned by `try_step`; nothing is changed
  skip,  ///< skip the step on every rank and say so in the report
};

/// What to do about tensors of which no rank has said anything in a step: in none of its
/// micro-steps was their unit asked for with `gradients(unit)`, or were they lent, or declared
/// absent with `without_gradient`. Tied tensors are one, and it is enough if one of them was named.
/// Frozen and empty ones need not be. What was asked for counts as given, reduced or not.
///
/// Nothing can be said about gradients that a trainer writes without a call. They count as given,
/// always: all that are lent by `bind`, and those that the library holds in full, once the trainer
/// has asked for `gradient(tensor)`, in any step.
enum class Unsaid : std::uint8_t {
  fail,   ///< Error (invalid_argument) on every rank, naming the first such tensor and its unit:
          ///< such a unit was most likely forgotten. Nothing is changed
  zeros,  ///< their gradients are zeros, so that momentum and decay go on
  rest,   ///< as if every rank had declared them absent: they rest
};

/// One micro-batch among those that make up a step.
struct MicroStep {
  /// How much this rank's micro-batch counts. The update uses the sum of all gradients divided by
  /// the sum of all weights; it multiplies no gradient by its weight, since gradients travel from
  /// where they lie, and a factor would take a pass of its own. A weight says what the mean
  /// gradient was multiplied by:
  /// | gradient                                     | multiply the loss by | weight |
  /// |----------------------------------------------|----------------------|--------|
  /// | sum over n samples                           | 1                    | n      |
  /// | mean over n samples, the same n everywhere   | 1                    | 1      |
  /// | mean over n samples, another n elsewhere     | n                    | n      |
  /// | sum of k such means, the same n everywhere   | 1                    | k      |
  ///
  /// It is 0 if this rank has no data. Such a rank says for each unit that other ranks reduce that
  /// it has no gradient (`without_gradient`), or reduces zeros.
  double weight = 1.;
  /// Says that no other micro-batch follows, so that reductions can start during its backward pass.
  /// The same on every rank, since it decides when collectives start.
  bool last = false;
};

/// Updates that a run can count: far from where one more would be a number below 0.
inline constexpr long most_steps = (std::numeric_limits<long>::max)() / 2;

/// Options of one step; the same on every rank, or the step fails on all of them, but for the last
/// two.
///
/// A step that is captured in a CUDA graph keeps them: learning rate, norm and count are arguments
/// of its kernels, as the tensors' rules, the weights of its micro-batches and what was said of
/// tensors' gradients are, and every launch uses those of the capture. The address of a learning
/// rate is kept, too, but not what lies there.
struct StepOptions {
  /// Of all tensors without a rule of their own, as `set_lr(lr)` for this step alone; finite and at
  /// least 0. The rule's if not given.
  std::optional<double> learning_rate{};
  /// Where the learning rate lies in the memory of the communicator's space; overrides
  /// `learning_rate` unless null. It is read there, once, when the step's turn comes, so that
  /// whoever writes it does so in the order of the space's queue. Ranks may name an address or give
  /// the value; if that is not the same bits on all of them, the step fails as with any other
  /// difference. A value that is not finite or less than 0 makes the step fail.
  float const* learning_rate_address = nullptr;
  /// The same of a rate in double.
  double const* learning_rate_address_double = nullptr;
  /// Clip the mean gradient to this L2 norm; greater than 0. Infinity clips nothing. A larger
  /// gradient is multiplied by `max_norm / grad_norm`: torch's `clip_grad_norm_` adds 1e-6 to the
  /// norm, which is not done here.
  std::optional<double> max_norm{};
  NonFinite non_finite = NonFinite::fail;  ///< read only where no loss scale is in use
  Unsaid unsaid = Unsaid::fail;            ///< of tensors of which no rank has said anything
  /// Number of this update, from 1 to `most_steps`, for trainers that count on their own. Every
  /// tensor that is updated has had so many then; one that rests keeps its count, or takes a
  /// smaller one along. If not given, one more than the run has had.
  std::optional<long> count{};
  /// Return while the refresh of replicated parameters is under way; `parameters(unit)` waits for
  /// just that unit. For trainers that read parameters through that call only.
  bool overlap_publish = false;
  /// This rank asks for the run to end: a signal has reached its process, its time is up. It
  /// changes nothing of the step, and costs no exchange of its own: `StepReport::stop` tells all
  /// ranks.
  bool stop = false;
};

/// What a run counts: beside master weights and states all that it goes on from. The same on every
/// rank.
struct Counters {
  /// Updates of each tensor, in registration order, and of each slice of a stacked one: fewer than
  /// `step` if it has rested. Where tensors are stacked, there are more of them than tensors:
  /// `slice_steps()` says so, and `steps(tensor)` of an optimizer is by tensor.
  std::vector<long> steps{};
  float loss_scale = 1.f;  ///< that the gradients of the next step are to carry
  /// Clean steps in a row, counted towards the growth of the scale; below 0, steps in a row that
  /// overflowed at the smallest scale.
  int loss_scale_streak = 0;
  long step = -1;  ///< updates of the run; below 0, as many as the tensor that has most

  /// `steps`, by a name that says what is counted: an entry for each slice of a stacked tensor.
  [[nodiscard]] ZERO_ALWAYS_INLINE std::vector<long>& slice_steps() noexcept { return steps; }
  /// @overload
  [[nodiscard]] ZERO_ALWAYS_INLINE std::vector<long> const& slice_steps() const noexcept {
    return steps;
  }
  friend bool operator==(Counters const&, Counters const&) = default;
};

/// What a step did. The same on every rank.
struct StepReport {
  long step = 0;                 ///< updates applied so far, this one included, or its `count`
  bool skipped = false;          ///< gradients overflowed; nothing was changed but the loss scale
  double grad_norm = 0.;         ///< L2 norm of the mean gradient before clipping
  double clip_coefficient = 1.;  ///< what clipping multiplied the mean gradient by
  float loss_scale = 1.f;        ///< that the gradients of this step carried
  double weight = 0.;            ///< of all micro-batches on all ranks
  /// Some rank passed `StepOptions::stop` to this step.
  bool stop = false;
  /// Tensors that this step has updated: all that are trained and did not rest, as
  /// `without_gradient` says, those of zero gradients included; 0 if it was skipped. Tied tensors
  /// are one, each layer of a stacked one counts, and frozen and empty ones do not.
  long updated = 0;
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE
