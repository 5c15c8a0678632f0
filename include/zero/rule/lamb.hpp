/// @file
/// LAMB: Adam's direction, as long as the tensor that it moves.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/rule/adam.hpp"
#include "zero/rule/trust_ratio.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// LAMB, for large batches: each tensor, or slice of a stacked one, takes a step whose norm is lr
/// times its own.
///
///     g = maximize ? −g : g
///     m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²
///     r = m̂ / (√v̂ + eps) + weight_decay · p,  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
///     p −= lr · ratio · r
///
/// The trust ratio is ‖p‖ / ‖r‖ over the whole tensor, within [min_ratio, max_ratio], and 1 where a
/// norm is 0, whatever the bounds. A tensor whose rule has 1 for both, such as norms and biases
/// that are given one by `set_rule`, takes steps of Adam's size. Where a norm is not finite, the
/// whole tensor becomes NaN.
/// @par Cost    2 state arrays, and those of a `MeasuringRule`
/// @par Source  You et al., arXiv:1904.00962, algorithm 2
struct Lamb {
  static constexpr std::string_view name = "LAMB";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square.
  static constexpr std::array states{StateArray{"exp_avg"}, StateArray{"exp_avg_sq"}};

  double lr = 1e-3;            ///< learning rate, unless a step brings its own
  double beta1 = 0.9;          ///< share of itself the mean of the gradient keeps per step
  double beta2 = 0.999;        ///< share of itself the mean of its square keeps per step
  double eps = 1e-6;           ///< added to the root, against division by zero
  double weight_decay = 1e-2;  ///< share of p in the direction of the step
  double min_ratio = 0.;       ///< the least trust ratio
  double max_ratio = detail::any_ratio;  ///< the largest one, by default none
  bool maximize = false;                 ///< climbs instead

  /// What one tensor needs in update number `step`, from 1: the rate `lr_now` (in place of `lr`)
  /// and the decay, times its scales of both, and the coefficients of the moments with their bias
  /// corrections.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long step,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    auto s = detail::AdamMoments::scalars(*this, step, Real(1), Real(1), wd_scale);
    s.learning_rate = lr_now * lr_scale;
    return s;
  }

  /// p and r of the formula.
  template <class V>
  ZERO_HOST_DEVICE void measure(ScalarsOf<V> const& s,
                                V const& p,
                                V const& g,
                                V const* state,
                                V (&numbers)[measured_numbers]) const noexcept {
    V moments[2] = {state[0], state[1]};
    numbers[0] = p;
    numbers[1] = direction(s, p, g, static_cast<V*>(moments));
  }

  /// Multiplies the rate by the trust ratio.
  template <class Real>
  ZERO_HOST_DEVICE void adjust(BasicStepScalars<Real>& s,
                               double const (&norms)[measured_numbers]) const noexcept {
    bool const none = norms[0] == 0. || norms[1] == 0.;
    double const ratio = detail::trust_ratio(norms[0], norms[1], none, min_ratio, max_ratio);
    s.learning_rate = detail::finite_rate<Real>(static_cast<double>(s.learning_rate) * ratio);
  }

  /// Updates an element or a pack of them; state[0] is m and state[1] is v of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const r = direction(s, p, g, state);
    p = math::mul_add(-s.learning_rate, r, p);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 8> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"beta1", beta1, 0., 1.},
             {"beta2", beta2, 0., 1.},
             {"eps", eps, 0.},
             {"weight_decay", weight_decay, 0.},
             {"min_ratio", min_ratio, 0.},
             {"max_ratio", max_ratio, min_ratio},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(Lamb const&, Lamb const&) = default;

 private:
  /// r of the formula, with moments that it has moved.
  template <class V>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static V direction(ScalarsOf<V> const& s,
                                                         V const& p,
                                                         V const& g,
                                                         V* moments) noexcept {
    using Moments = detail::AdamMoments;
    V const towards = s.extra[Moments::sign] * g;
    Moments::move(s, towards, moments);
    V const denominator = math::sqrt(moments[1]) + s.extra[Moments::floor];
    V const mean = s.extra[Moments::step_size] * moments[0];
    return math::mul_add(s.weight_decay, p, mean / denominator);
  }
};

static_assert(DescribedRule<Lamb> && RuleInDouble<Lamb> && MeasuringRule<Lamb>);

}  // namespace zero::inline ZERO_NAMESPACE
