/// @file
/// NAdam: Adam with Nesterov's momentum.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/rule/adam.hpp"

#include <array>
#include <cstddef>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// NAdam: Adam that looks ahead by what the momentum will do, more so as training goes on.
///
///     μᵢ = β₁ (1 − ½ · 0.96^(i · momentum_decay)),  M = μ₁ μ₂ … μₜ
///     g = (maximize ? −g : g) + weight_decay · p, or where decoupled p −= lr · weight_decay · p
///     m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²;  r = √(v / (1 − β₂ᵗ)) + eps
///     p −= lr · (1 − μₜ) / (1 − M) · g / r + lr · μₜ₊₁ / (1 − M μₜ₊₁) · m / r
///
/// Formula and defaults are those of torch.optim.NAdam.
/// @par Cost    2 state arrays
/// @par Source  Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016
struct NAdam {
  static constexpr std::string_view name = "NAdam";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square.
  static constexpr std::array states{StateArray{"exp_avg"}, StateArray{"exp_avg_sq"}};

  double lr = 2e-3;              ///< learning rate, unless a step brings its own
  double beta1 = 0.9;            ///< share of itself the mean of the gradient keeps per step
  double beta2 = 0.999;          ///< share of itself the mean of its square keeps per step
  double eps = 1e-8;             ///< added to the root, against division by zero
  double weight_decay = 0.;      ///< of p, as `decoupled` says
  double momentum_decay = 4e-3;  ///< how soon the momentum is what β₁ says
  bool decoupled = false;        ///< the decay shrinks p itself
  bool maximize = false;         ///< climbs instead

  /// What one tensor needs in update number `step`, from 1: the rate `lr_now` (in place of `lr`)
  /// and the decay, times its scales of both, the coefficients of the moments and of the two parts
  /// of the step.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long step,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    BasicStepScalars<Real> s =
        detail::AdamMoments::scalars(*this, step, lr_now, lr_scale, wd_scale);
    double const factor = power_of_096(momentum_decay);
    auto const mu = [&](double power) { return beta1 * math::sum(1., -0.5 * power); };
    double product = 1.;
    double power = factor;
    // What is left below 2^-64 is nothing beside 1, and stays nothing.
    for (long i = 1; i <= step && product > 0x1p-64; ++i, power *= factor) product *= mu(power);
    double const here = mu(detail::power(factor, step));
    double const next = mu(detail::power(factor, step + 1));
    double const rate = static_cast<double>(s.learning_rate);
    double const root = __builtin_sqrt(math::sum(1., -detail::power(beta2, step)));
    s.extra[of_gradient] =
        static_cast<Real>(rate * root * math::sum(1., -here) / math::sum(1., -product));
    s.extra[of_mean] = static_cast<Real>(rate * root * next / math::sum(1., -product * next));
    return s;
  }

  /// Updates an element or a pack of them; state[0] is m and state[1] is v of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const towards = maximize ? -g : g;
    V const coupled = decoupled ? towards : math::mul_add(s.weight_decay, p, towards);
    if (decoupled) p = math::mul_add(-(s.learning_rate * s.weight_decay), p, p);
    detail::AdamMoments::move(s, coupled, state);
    V const denominator = math::sqrt(state[1]) + s.extra[detail::AdamMoments::floor];
    p = math::mul_add(-s.extra[of_gradient], coupled / denominator, p);
    p = math::mul_add(-s.extra[of_mean], state[0] / denominator, p);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 8> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"beta1", beta1, 0., 1.},
             {"beta2", beta2, 0., 1.},
             {"eps", eps, 0.},
             {"weight_decay", weight_decay, 0.},
             {"momentum_decay", momentum_decay, 0., 100.},
             {"decoupled", decoupled ? 1. : 0.},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(NAdam const&, NAdam const&) = default;

 private:
  /// In the place of Adam's step and of its sign, which the rule knows.
  static constexpr std::size_t of_gradient = detail::AdamMoments::step_size;
  static constexpr std::size_t of_mean = detail::AdamMoments::sign;

  /// 0.96 to the power of x in [0, 100): the same bits on every machine, which a libm's pow is not.
  /// The argument of the series is at least -4.1, where 32 terms have all digits.
  [[nodiscard]] ZERO_HOST_DEVICE static double power_of_096(double x) noexcept {
    double const argument = -0.040821994520255166 * x;  // ln 0.96
    double sum = 1.;
    for (int n = 32; n > 0; --n) sum = math::sum(1., argument / n * sum);
    return sum;
  }
};

static_assert(DescribedRule<NAdam> && RuleInDouble<NAdam>);

}  // namespace zero::inline ZERO_NAMESPACE
