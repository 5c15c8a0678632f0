/// @file
/// Adagrad.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Adagrad: steps that shrink with the sum of all squared gradients so far.
///
///     g = (maximize ? −g : g) + weight_decay · p
///     s += g²
///     p −= lr / (1 + (t − 1) · lr_decay) · g / (√(initial_accumulator_value + s) + eps)
///
/// Formula and defaults are those of torch.optim.Adagrad, whose sum starts at the initial value
/// instead of meeting it where it is read.
/// @par Cost    1 state array
/// @par Source  Duchi, Hazan & Singer, JMLR 12 (2011), with a diagonal matrix
struct Adagrad {
  static constexpr std::string_view name = "Adagrad";  ///< in fingerprints and reports
  /// The sum of squared gradients.
  static constexpr std::array states{StateArray{"sum"}};

  double lr = 1e-2;          ///< learning rate, unless a step brings its own
  double lr_decay = 0.;      ///< the rate is divided by 1 + (t − 1) · lr_decay; 0 keeps it
  double weight_decay = 0.;  ///< added to the gradient as weight_decay · p
  double eps = 1e-10;        ///< added to the root, against division by zero
  double initial_accumulator_value = 0.;  ///< added to the sum of squares
  bool maximize = false;                  ///< climbs instead

  /// What one tensor needs in update number `step`, from 1: the rate `lr_now` (in place of `lr`)
  /// and the decay, times its scales of both, the gradient's sign, and what meets the sum and its
  /// root; the rate is already divided as `lr_decay` says.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long step,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    auto const decay = static_cast<double>(static_cast<Real>(lr_decay));
    double const slowdown = math::sum(1., static_cast<double>(step - 1) * decay);
    BasicStepScalars<Real> s{
        .learning_rate = static_cast<Real>(static_cast<double>(lr_now * lr_scale) / slowdown),
        .weight_decay = static_cast<Real>(weight_decay) * wd_scale};
    s.extra[0] = static_cast<Real>(maximize ? -1 : 1);
    s.extra[1] = static_cast<Real>(initial_accumulator_value);
    s.extra[2] = static_cast<Real>(eps);
    return s;
  }

  /// Updates an element or a pack of them; state[0] is s of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const decayed = math::mul_add(s.weight_decay, p, s.extra[0] * g);
    state[0] = math::mul_add(decayed, decayed, state[0]);
    V const step = decayed / (math::sqrt(state[0] + s.extra[1]) + s.extra[2]);
    p = math::mul_add(-s.learning_rate, step, p);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 6> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"lr_decay", lr_decay, 0.},
             {"weight_decay", weight_decay, 0.},
             {"eps", eps, 0.},
             {"initial_accumulator_value", initial_accumulator_value, 0.},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(Adagrad const&, Adagrad const&) = default;
};

static_assert(DescribedRule<Adagrad> && RuleInDouble<Adagrad>);

}  // namespace zero::inline ZERO_NAMESPACE
