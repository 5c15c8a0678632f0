/// @file
/// AMSGrad: Adam whose steps never grow because a mean has shrunk.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/rule/adam.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Adam or AdamW that divides by the largest mean of squares so far.
///
///     decoupled:     p −= lr · weight_decay · p;  g = maximize ? −g : g
///     not decoupled: g = (maximize ? −g : g) + weight_decay · p
///     m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²;  w = max(w, v)
///     p −= lr · m̂ / (√ŵ + eps),  m̂ = m / (1 − β₁ᵗ),  ŵ = w / (1 − β₂ᵗ)
///
/// The formula is that of torch.optim.AdamW with amsgrad, and not decoupled that of
/// torch.optim.Adam.
/// @par Cost    3 state arrays
/// @par Source  Reddi, Kale & Kumar, arXiv:1904.09237, algorithm 2
struct AmsGrad {
  static constexpr std::string_view name = "AMSGrad";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square, and the largest of the latter.
  static constexpr std::array states{
      StateArray{"exp_avg"}, StateArray{"exp_avg_sq"}, StateArray{"max_exp_avg_sq"}};

  double lr = 1e-3;            ///< learning rate, unless a step brings its own
  double beta1 = 0.9;          ///< share of itself the mean of the gradient keeps per step
  double beta2 = 0.999;        ///< share of itself the mean of its square keeps per step
  double eps = 1e-8;           ///< added to the root, against division by zero
  double weight_decay = 1e-2;  ///< of p, as `decoupled` says
  bool decoupled = true;  ///< the decay shrinks p itself, and does not pass through the moments
  bool maximize = false;  ///< climbs instead

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

  /// Updates an element or a pack of them; state[0] is m, state[1] v and state[2] w of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const towards = s.extra[detail::AdamMoments::sign] * g;
    V const coupled = decoupled ? towards : math::mul_add(s.weight_decay, p, towards);
    if (decoupled) p = math::mul_add(-(s.learning_rate * s.weight_decay), p, p);
    detail::AdamMoments::move(s, coupled, state);
    state[2] = (math::max)(state[2], state[1]);
    detail::AdamMoments::step(s, p, state[0], state[2]);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 7> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"beta1", beta1, 0., 1.},
             {"beta2", beta2, 0., 1.},
             {"eps", eps, 0.},
             {"weight_decay", weight_decay, 0.},
             {"decoupled", decoupled ? 1. : 0.},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(AmsGrad const&, AmsGrad const&) = default;
};

static_assert(DescribedRule<AmsGrad> && RuleInDouble<AmsGrad>);

}  // namespace zero::inline ZERO_NAMESPACE
