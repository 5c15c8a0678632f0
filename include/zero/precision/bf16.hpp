/// @file
/// bf16 without master weights.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/kernel/stochastic_bf16.hpp"

#include <concepts>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// How `Bf16` rounds what an update makes of a parameter: with random bits, so that the mean of
/// all cases is the number. To nearest is not offered: a parameter would stand still wherever an
/// update is less than 2^-9 of it, which most are.
struct StochasticRounding {
  using Parameter = kernel::StochasticBf16;  ///< what kernels read and write parameters as
};

/// Parameters, gradients and states in bf16, and no master weights: 2 + 2 + K bytes for each
/// element, K = 4 with Adam. Sums over ranks and micro-steps are in float, as is the update, which
/// works on the parameter itself and rounds it and the states stochastically; `Seed` chooses the
/// random bits. What has no larger finite number becomes infinite, and NaN stays NaN. Values that
/// are loaded or converted are rounded to nearest, half to even.
///
/// Training is noisier than over master weights: use them, or remainders (`Rest8`), where memory
/// allows.
/// @tparam Rounding   `StochasticRounding`
/// @tparam StateType  bf16, or float for states in fp32: 2 + 2 + 8 bytes with Adam
template <class Rounding, class StateType = bf16>
struct Bf16 {
  static_assert(std::same_as<Rounding, StochasticRounding>,
                "zero: parameters of bf16 without masters are rounded stochastically, as in "
                "zero::Bf16<zero::StochasticRounding>: to nearest they would stand still");
  static_assert(std::same_as<StateType, bf16> || std::same_as<StateType, float>,
                "zero: states beside bf16 parameters are bf16 or float");
  /// In fingerprints and reports.
  static constexpr std::string_view name =
      std::same_as<StateType, bf16> ? "bf16 stochastic" : "bf16 stochastic+fp32 states";
  using Parameter = bf16;                     ///< what forward and backward read
  using Wire = bf16;                          ///< gradients, held and sent
  using Accumulate = float;                   ///< sums over ranks and micro-steps
  using Master = bf16;                        ///< same as `Parameter`: no separate copy is held
  using State = StateType;                    ///< optimizer states
  using Masters = Rounding;                   ///< how updates round parameters
  static constexpr bool loss_scaled = false;  ///< bf16 has fp32's range
  /// All are equal.
  friend constexpr bool operator==(Bf16 const&, Bf16 const&) = default;
};

static_assert(Precision<Bf16<StochasticRounding>>);
static_assert(Precision<Bf16<StochasticRounding, float>>);

}  // namespace zero::inline ZERO_NAMESPACE
