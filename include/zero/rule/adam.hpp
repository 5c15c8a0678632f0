/// @file
/// Adam, with coupled (L2) weight decay.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// base to the power n >= 0 by squaring: the same bits on every machine, whatever its libm.
[[nodiscard]] ZERO_HOST_DEVICE constexpr double power(double base, long n) noexcept {
  double result = 1.;
  for (; n > 0; n >>= 1, base *= base) {
    if ((n & 1) != 0) result *= base;
  }
  return result;
}

/// What Adam and AdamW share: two moments and their bias corrections.
struct AdamMoments {
  enum Index : std::size_t { beta1, rest1, beta2, rest2, step_size, floor, sign };

  template <class R, class Real>
  [[nodiscard]] ZERO_HOST_DEVICE static BasicStepScalars<Real> scalars(
      R const& rule, long step, Real lr_now, Real lr_scale, Real wd_scale) noexcept {
    BasicStepScalars<Real> s{.learning_rate = lr_now * lr_scale,
                             .weight_decay = static_cast<Real>(rule.weight_decay) * wd_scale};
    // Rounded from fp64: in fp32, 1 - 0.999 is off by 5e-5 of itself.
    s.extra[beta1] = static_cast<Real>(rule.beta1);
    s.extra[rest1] = static_cast<Real>(1. - rule.beta1);
    s.extra[beta2] = static_cast<Real>(rule.beta2);
    s.extra[rest2] = static_cast<Real>(1. - rule.beta2);
    // The correction of v moves out of the root and into the numbers that meet it there:
    // m̂ / (√v̂ + eps) = m · √(1 − β₂ᵗ) / (1 − β₁ᵗ) / (√v + eps · √(1 − β₂ᵗ)).
    double const root = __builtin_sqrt(math::sum(1., -power(rule.beta2, step)));
    double const lr = static_cast<double>(s.learning_rate);
    s.extra[step_size] = static_cast<Real>(lr * root / math::sum(1., -power(rule.beta1, step)));
    s.extra[floor] = static_cast<Real>(static_cast<double>(static_cast<Real>(rule.eps)) * root);
    s.extra[sign] = static_cast<Real>(rule.maximize ? -1 : 1);
    return s;
  }

  /// Moves the moments towards g and g².
  template <class V>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static void move(ScalarsOf<V> const& s,
                                                       V const& g,
                                                       V* state) noexcept {
    state[0] = math::mul_add(s.extra[beta1], state[0], s.extra[rest1] * g);
    state[1] = math::mul_add(s.extra[beta2], state[1], (s.extra[rest2] * g) * g);
  }

  /// Moves p by the corrected step.
  template <class V>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static void step(ScalarsOf<V> const& s,
                                                       V& p,
                                                       V const& mean,
                                                       V const& squares) noexcept {
    V const denominator = math::sqrt(squares) + s.extra[floor];
    p = math::mul_add(-s.extra[step_size], mean / denominator, p);
  }

  /// Both.
  template <class V>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static void update(ScalarsOf<V> const& s,
                                                         V& p,
                                                         V const& g,
                                                         V* state) noexcept {
    move(s, g, state);
    step(s, p, state[0], state[1]);
  }
};

}  // namespace detail

/// Adam: steps of the size of `lr`, from running means of the gradient and of its square.
///
///     g = (maximize ? −g : g) + weight_decay · p
///     m = β₁ m + (1 − β₁) g;  v = β₂ v + (1 − β₂) g²
///     p −= lr · m̂ / (√v̂ + eps),  m̂ = m / (1 − β₁ᵗ),  v̂ = v / (1 − β₂ᵗ)
///
/// Formula and defaults are those of torch.optim.Adam. With `eps_hat` they are those of TensorFlow,
/// ensmallen and dlib:
///
///     p −= lr · √(1 − β₂ᵗ) / (1 − β₁ᵗ) · m / (√v + eps)
/// @par Cost    2 state arrays
/// @par Source  Kingma & Ba, arXiv:1412.6980, algorithm 1, and for ε̂ the end of section 2
struct Adam {
  static constexpr std::string_view name = "Adam";  ///< in fingerprints and reports
  /// Running means of the gradient and of its square.
  static constexpr std::array states{StateArray{"exp_avg"}, StateArray{"exp_avg_sq"}};

  double lr = 1e-3;          ///< learning rate, unless a step brings its own
  double beta1 = 0.9;        ///< share of itself the mean of the gradient keeps per step
  double beta2 = 0.999;      ///< share of itself the mean of its square keeps per step
  double eps = 1e-8;         ///< added to the root, against division by zero
  double weight_decay = 0.;  ///< added to the gradient as weight_decay · p
  bool maximize = false;     ///< climbs instead
  bool eps_hat = false;      ///< eps meets the root before its bias correction: ε̂ of the paper

  /// What one tensor needs in update number `step`, from 1: the rate `lr_now` (in place of `lr`)
  /// and the decay, times its scales of both, and the coefficients of the moments with their bias
  /// corrections.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long step,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    auto s = detail::AdamMoments::scalars(*this, step, lr_now, lr_scale, wd_scale);
    if (eps_hat) s.extra[detail::AdamMoments::floor] = static_cast<Real>(eps);
    return s;
  }

  /// Updates an element or a pack of them; state[0] is m and state[1] is v of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const towards = s.extra[detail::AdamMoments::sign] * g;
    V const decayed = math::mul_add(s.weight_decay, p, towards);
    detail::AdamMoments::update(s, p, decayed, state);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 7> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"beta1", beta1, 0., 1.},
             {"beta2", beta2, 0., 1.},
             {"eps", eps, 0.},
             {"weight_decay", weight_decay, 0.},
             {"maximize", maximize ? 1. : 0.},
             {"eps_hat", eps_hat ? 1. : 0.}}};
  }

  friend constexpr bool operator==(Adam const&, Adam const&) = default;
};

static_assert(DescribedRule<Adam> && RuleInDouble<Adam>);

}  // namespace zero::inline ZERO_NAMESPACE
