/// @file
/// The precision slot: five dtypes, each with one job.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"

#include <concepts>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Which type holds what.
///
/// | member        | holds                                                          |
/// |---------------|----------------------------------------------------------------|
/// | `Parameter`   | the parameters forward and backward read                       |
/// | `Wire`        | gradients: as the trainer accumulates them and as they travel  |
/// | `Accumulate`  | sums over ranks and, with AccumulateShard, over micro-steps    |
/// | `Master`      | the parameters the update reads and writes                     |
/// | `State`       | optimizer states                                               |
///
/// `loss_scaled` says that gradients carry a dynamic loss scale and that a step whose gradients
/// overflow is skipped; such a precision has a member `loss_scale` (LossScaleOptions). If `Master`
/// is the same type as `Parameter`, no separate master is held.
template <class P>
concept Precision = std::regular<P> && requires {
  { P::name } -> std::convertible_to<std::string_view>;
  requires FloatElement<typename P::Parameter>;
  requires FloatElement<typename P::Wire>;
  requires FloatElement<typename P::Accumulate>;
  requires FloatElement<typename P::Master>;
  requires FloatElement<typename P::State>;
  { P::loss_scaled } -> std::convertible_to<bool>;
  requires sizeof(typename P::Accumulate) >= sizeof(typename P::Wire);
  requires !P::loss_scaled || requires(P const& precision) { precision.loss_scale; };
};

/// True if the update keeps a wider copy of the parameters beside the ones the model reads.
template <Precision P>
inline constexpr bool has_master = !std::same_as<typename P::Master, typename P::Parameter>;

}  // namespace zero::inline ZERO_NAMESPACE
