/// @file
/// RMSProp, with and without momentum, centered or not.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"

#include <array>
#include <cstddef>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// RMSProp: steps of equal size, from a running mean of squared gradients.
///
///     g = (maximize ? −g : g) + weight_decay · p
///     v = alpha · v + (1 − alpha) g²
///     centered: a = alpha · a + (1 − alpha) g;  otherwise a = 0
///     d = g / (√(v − a²) + eps)
///     with momentum: b = momentum · b + d;  otherwise b = d
///     p −= lr · b
///
/// Formula and defaults are those of torch.optim.RMSprop.
/// @tparam WithMomentum  whether there is a momentum, and a state array for it
/// @tparam Centered      whether the variance is estimated, with a state array for the mean
/// @par Cost    1 state array, and one for each of the two
/// @par Source  Hinton's lecture 6e, 2012; centered: Graves, arXiv:1308.0850, equations 38 to 45
template <bool WithMomentum = false, bool Centered = false>
struct RmsProp {
  /// In fingerprints and reports.
  static constexpr std::string_view name =
      WithMomentum ? Centered ? "centered RMSProp with momentum" : "RMSProp with momentum"
      : Centered   ? "centered RMSProp"
                   : "RMSProp";
  /// The mean of squares, then the momentum, then the mean of the gradient.
  static constexpr auto states = [] {
    std::array<StateArray, 1 + std::size_t{WithMomentum} + std::size_t{Centered}> all{};
    all[0] = {"square_avg"};
    if (WithMomentum) all[1] = {"momentum_buffer"};
    if (Centered) all[all.size() - 1] = {"grad_avg"};
    return all;
  }();

  double lr = 1e-2;          ///< learning rate, unless a step brings its own
  double alpha = 0.99;       ///< share of themselves the means keep per step
  double eps = 1e-8;         ///< added to the root, against division by zero
  double momentum = 0.;      ///< share of itself the momentum keeps per step
  double weight_decay = 0.;  ///< added to the gradient as weight_decay · p
  bool maximize = false;     ///< climbs instead

  /// What one tensor needs in a step: the rate `lr_now` (in place of `lr`) and the decay, times its
  /// scales of both, the gradient's sign, the coefficients of the means, eps and momentum.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    BasicStepScalars<Real> s{.learning_rate = lr_now * lr_scale,
                             .weight_decay = static_cast<Real>(weight_decay) * wd_scale};
    s.extra[0] = static_cast<Real>(maximize ? -1 : 1);
    s.extra[1] = static_cast<Real>(alpha);
    s.extra[2] = static_cast<Real>(1. - alpha);
    s.extra[3] = static_cast<Real>(eps);
    s.extra[4] = static_cast<Real>(momentum);
    return s;
  }

  /// Updates an element or a pack of them; state[0] is v of the formula, b and a follow.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const decayed = math::mul_add(s.weight_decay, p, s.extra[0] * g);
    state[0] = math::mul_add(s.extra[1], state[0], (s.extra[2] * decayed) * decayed);
    V variance = state[0];
    if constexpr (Centered) {
      V& mean = state[states.size() - 1];
      mean = math::mul_add(s.extra[1], mean, s.extra[2] * decayed);
      // Where all gradients were alike, rounding may leave less than nothing.
      variance = (math::max)(math::mul_add(-mean, mean, variance), V(0.f));
    }
    V direction = decayed / (math::sqrt(variance) + s.extra[3]);
    if constexpr (WithMomentum) {
      state[1] = math::mul_add(s.extra[4], state[1], direction);
      direction = state[1];
    }
    p = math::mul_add(-s.learning_rate, direction, p);
  }

  /// Every hyper-parameter by name; ranks compare them. Without a momentum, only 0 makes sense.
  [[nodiscard]] constexpr std::array<RuleField, 6> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"alpha", alpha, 0., 1.},
             {"eps", eps, 0.},
             {"momentum", momentum, 0., WithMomentum ? 1. : 0x1p-1022},
             {"weight_decay", weight_decay, 0.},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(RmsProp const&, RmsProp const&) = default;
};

static_assert(DescribedRule<RmsProp<>> && RuleInDouble<RmsProp<>>);
static_assert(DescribedRule<RmsProp<true, true>> && RuleInDouble<RmsProp<true, true>>);

}  // namespace zero::inline ZERO_NAMESPACE
