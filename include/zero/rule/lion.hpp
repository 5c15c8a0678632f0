/// @file
/// Lion.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Lion: steps of one size, in the direction of the sign of a momentum; half of Adam's state.
///
///     p −= lr · weight_decay · p
///     p −= lr · sign(β₁ m + (1 − β₁) g)
///     m = β₂ m + (1 − β₂) g
///
/// A usual learning rate is a third to a tenth of Adam's, a usual weight decay as much larger.
/// @par Cost    1 state array
/// @par Source  Chen et al., arXiv:2302.06675, program 1
struct Lion {
  static constexpr std::string_view name = "Lion";  ///< in fingerprints and reports
  /// The momentum.
  static constexpr std::array states{StateArray{"exp_avg"}};

  double lr = 1e-4;          ///< size of every step, unless a step brings its own
  double beta1 = 0.9;        ///< weight of the momentum against the gradient in the direction
  double beta2 = 0.99;       ///< share of itself the momentum keeps per step
  double weight_decay = 0.;  ///< share of p taken off per step, times lr

  /// What one tensor needs in a step: the rate `lr_now` (in place of `lr`) and the decay, times its
  /// scales of both, and the weights of momentum and gradient.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    BasicStepScalars<Real> s{.learning_rate = lr_now * lr_scale,
                             .weight_decay = static_cast<Real>(weight_decay) * wd_scale};
    s.extra[b1] = static_cast<Real>(beta1);
    s.extra[rest1] = static_cast<Real>(1. - beta1);
    s.extra[b2] = static_cast<Real>(beta2);
    s.extra[rest2] = static_cast<Real>(1. - beta2);
    return s;
  }

  /// Updates an element or a pack of them; state[0] is m of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const direction = math::mul_add(s.extra[b1], state[0], s.extra[rest1] * g);
    p = math::mul_add(-(s.learning_rate * s.weight_decay), p, p);
    p = math::mul_add(-s.learning_rate, math::sign(direction), p);
    state[0] = math::mul_add(s.extra[b2], state[0], s.extra[rest2] * g);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 4> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"beta1", beta1, 0., 1.},
             {"beta2", beta2, 0., 1.},
             {"weight_decay", weight_decay, 0.}}};
  }

  friend constexpr bool operator==(Lion const&, Lion const&) = default;

 private:
  enum Index : std::size_t { b1, rest1, b2, rest2 };
};

static_assert(DescribedRule<Lion> && RuleInDouble<Lion>);

}  // namespace zero::inline ZERO_NAMESPACE
