/// @file
/// The precision slot: five dtypes, each with one job.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"

#include <concepts>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// Can elements of one type be added up in the other? For each pair that precisions use there is a
/// kernel.
[[nodiscard]] constexpr bool has_sums(DType wire, DType accumulate) noexcept {
  if (wire == DType::f64) return accumulate == DType::f64;
  if (wire == DType::f32) return accumulate == DType::f32 || accumulate == DType::f64;
  return accumulate == DType::f32;
}

/// What says that it is a precision.
template <class P>
concept NamesFiveTypes = requires {
  typename P::Parameter;
  typename P::Wire;
  typename P::Accumulate;
  typename P::Master;
  typename P::State;
};

}  // namespace detail

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
/// Each is float, double, bf16 or fp16. Sums of double are in double, those of float in float or
/// double, those of 16 bits in float. A master is at least as wide as a parameter. Where masters,
/// states or reduced gradients are double, rules compute in double (`RuleInDouble`).
///
/// `loss_scaled` says that gradients carry a dynamic loss scale and that a step whose gradients
/// overflow is skipped; such a precision has a member `loss_scale` (LossScaleOptions). If `Master`
/// is the same type as `Parameter`, no separate master is held.
///
/// An optional member type `Masters` says how masters are held and parameters rounded from them:
/// `Fp32Masters`, which is what a precision without it has, `HalfAway` or `Rest16`.
template <class P>
concept Precision = std::regular<P> && requires {
  { P::name } -> std::convertible_to<std::string_view>;
  requires FloatElement<typename P::Parameter>;
  requires FloatElement<typename P::Wire>;
  requires FloatElement<typename P::Accumulate>;
  requires FloatElement<typename P::Master>;
  requires FloatElement<typename P::State>;
  { P::loss_scaled } -> std::convertible_to<bool>;
  requires detail::has_sums(dtype_of<typename P::Wire>, dtype_of<typename P::Accumulate>);
  requires sizeof(typename P::Master) >= sizeof(typename P::Parameter);
  requires !P::loss_scaled || requires(P const& precision) { precision.loss_scale; };
};

/// What rules compute in: double if masters, states or reduced gradients are, else float.
/// @tparam sums  whether micro-steps add up in the accumulate dtype
template <Precision P, bool sums = false>
using RuleReal = std::conditional_t<std::same_as<typename P::Master, double> ||
                                        std::same_as<typename P::State, double> ||
                                        std::same_as<typename P::Wire, double> ||
                                        (sums && std::same_as<typename P::Accumulate, double>),
                                    double,
                                    float>;

namespace detail {

/// What a reduced gradient is of.
/// @tparam sums  as of `RuleReal`
template <class P, bool sums>
using ReducedGradient = std::conditional_t<sums, typename P::Accumulate, typename P::Wire>;

}  // namespace detail

/// Are parameters rounded from masters in a way of their own?
template <class P>
concept RoundingPrecision = requires {
  typename P::Masters::Parameter;
};

/// Are masters what that has taken from them?
template <class P>
concept RemainderPrecision = RoundingPrecision<P> && requires {
  typename P::Masters::Held;
};

/// True if the update keeps a wider copy of the parameters beside the ones the model reads, or what
/// they lack to be wider.
template <Precision P>
inline constexpr bool has_master = !std::same_as<typename P::Master, typename P::Parameter>;

/// Bytes of what is held beside a parameter for its master.
template <Precision P>
inline constexpr std::size_t master_bytes = [] {
  if constexpr (RemainderPrecision<P>) return sizeof(typename P::Masters::Held);
  return has_master<P> ? sizeof(typename P::Master) : 0;
}();

}  // namespace zero::inline ZERO_NAMESPACE
