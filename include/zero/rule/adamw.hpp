/// @file
/// AdamW: Adam with decoupled weight decay.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/rule/adam.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// AdamW: Adam whose weight decay shrinks the parameter itself and does not pass through the
/// moments.
///
///     p −= lr · weight_decay · p;  g = maximize ? −g : g
///     m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²
///     p −= lr · m̂ / (√v̂ + eps),  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
///
/// Formula and defaults are those of torch.optim.AdamW.
/// @par Cost    2 state arrays
/// @par Source  Loshchilov & Hutter, arXiv:1711.05101, algorithm 2 (with lr in front of the decay)
struct AdamW {
  static constexpr std::string_view name = "AdamW";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square.
  static constexpr std::array states{StateArray{"exp_avg"}, StateArray{"exp_avg_sq"}};

  double lr = 1e-3;            ///< learning rate, unless a step brings its own
  double beta1 = 0.9;          ///< share of itself the mean of the gradient keeps per step
  double beta2 = 0.999;        ///< share of itself the mean of its square keeps per step
  double eps = 1e-8;           ///< added to the root, against division by zero
  double weight_decay = 1e-2;  ///< share of p taken off per step, times lr
  bool maximize = false;       ///< climbs instead

  /// What one tensor needs in update number `step`, from 1: the rate `lr_now` (in place of `lr`)
  /// and the decay, times its scales of both, and the coefficients of the moments with their bias
  /// corrections.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long step,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    return detail::AdamMoments::scalars(*this, step, lr_now, lr_scale, wd_scale);
  }

  /// Updates an element or a pack of them; state[0] is m and state[1] is v of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    // p − (lr·wd)·p and not p·(1 − lr·wd): that factor has few digits left of a small decay.
    p = math::mul_add(-(s.learning_rate * s.weight_decay), p, p);
    V const towards = s.extra[detail::AdamMoments::sign] * g;
    detail::AdamMoments::update(s, p, towards, state);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 6> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"beta1", beta1, 0., 1.},
             {"beta2", beta2, 0., 1.},
             {"eps", eps, 0.},
             {"weight_decay", weight_decay, 0.},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(AdamW const&, AdamW const&) = default;
};

static_assert(DescribedRule<AdamW> && RuleInDouble<AdamW>);

}  // namespace zero::inline ZERO_NAMESPACE
