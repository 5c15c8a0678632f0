/// @file
/// What a step is told and what it reports.
#pragma once

#include <cstdint>
#include <optional>

namespace zero::inline v0_1 {

/// What to do about gradients that are not finite where no loss scale watches for them. Where one
/// does, steps are skipped, and fail once `LossScaleOptions::patience` says so.
enum class NonFinite : std::uint8_t {
  fail,  ///< Error (data) on every rank: thrown, or returned by `try_step`; nothing is changed
  skip,  ///< skip the step on every rank and say so in the report
};

/// One micro-batch among those that make up a step.
struct MicroStep {
  /// How much this rank's micro-batch counts: 1 if its gradient is a mean, the number of tokens if
  /// it is a sum over tokens, 0 if this rank has no data. The update uses the sum of all gradients
  /// divided by the sum of all weights.
  double weight = 1.;
  /// Says that no other micro-batch follows, so that reductions can start during its backward pass.
  /// The same on every rank, since it decides when collectives start.
  bool last = false;
};

/// Options of one step; the same on every rank, or the step fails on all of them.
///
/// A step that is captured in a CUDA graph keeps them: learning rate and norm are arguments of its
/// kernels, as the weights of its micro-batches are, and every launch uses those of the capture.
/// The address of a learning rate is kept, too, but not what lies there.
struct StepOptions {
  std::optional<float> learning_rate{};  ///< the rule's own if not given
  /// Where the learning rate lies in the memory of the communicator's space; overrides
  /// `learning_rate` unless null. It is read there, once, when the step's turn comes, so that
  /// whoever writes it does so in the order of the space's queue. Ranks may name an address or give
  /// the value; if that is not the same bits on all of them, the step fails as with any other
  /// difference. A value that is not finite is used as it is, as `learning_rate` is.
  float const* learning_rate_address = nullptr;
  std::optional<double> max_norm{};        ///< clip the mean gradient to this L2 norm
  NonFinite non_finite = NonFinite::fail;  ///< read only where no loss scale is in use
  /// Return while the refresh of replicated parameters is under way; `parameters(unit)` waits for
  /// just that unit. For trainers that read parameters through that call only.
  bool overlap_publish = false;
};

/// What a step did. The same on every rank.
struct StepReport {
  long step = 0;                 ///< updates applied so far, this one included
  bool skipped = false;          ///< gradients overflowed; nothing was changed but the loss scale
  double grad_norm = 0.;         ///< L2 norm of the mean gradient before clipping
  double clip_coefficient = 1.;  ///< what clipping multiplied the mean gradient by
  float loss_scale = 1.f;        ///< that the gradients of this step carried
  double weight = 0.;            ///< of all micro-batches on all ranks
};

}  // namespace zero::inline v0_1
