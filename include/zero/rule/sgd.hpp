/// @file
/// Stochastic gradient descent, with and without momentum.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"

#include <array>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// Gradient descent with momentum and coupled (L2) weight decay.
///
///     g = (maximize ? −g : g) + weight_decay · p
///     m = momentum · m + (1 − dampening) · g, but m = g in a tensor's first update
///     p −= lr · (nesterov ? g + momentum · m : m)
///
/// The formula is that of torch.optim.SGD, which refuses dampening with nesterov. It holds one
/// state array; without momentum use `PlainSgd`, which holds none.
/// @par Cost    1 state array
/// @par Source  Sutskever et al., "On the importance of initialization and momentum", ICML 2013
struct Sgd {
  static constexpr std::string_view name = "SGD";  ///< in fingerprints and reports
  /// The momentum.
  static constexpr std::array states{StateArray{"momentum"}};

  double lr = 1e-3;          ///< learning rate, unless a step brings its own
  double momentum = 0.9;     ///< share of itself the momentum keeps per step
  double weight_decay = 0.;  ///< added to the gradient as weight_decay · p
  bool nesterov = false;     ///< steps along g + momentum · m in place of m
  double dampening = 0.;     ///< share of the gradient that the momentum leaves out
  bool maximize = false;     ///< climbs instead

  /// What one tensor needs in update number `step`, from 1: the rate `lr_now` (in place of `lr`)
  /// and the decay, times its scales of both, the gradient's sign, its share in the momentum, and
  /// the momentum's.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long step,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    BasicStepScalars<Real> s{.learning_rate = lr_now * lr_scale,
                             .weight_decay = static_cast<Real>(weight_decay) * wd_scale};
    s.extra[0] = static_cast<Real>(maximize ? -1 : 1);
    s.extra[1] = step == 1 ? Real(1) : Real(1) - static_cast<Real>(dampening);
    s.extra[2] = static_cast<Real>(momentum);
    return s;
  }

  /// Updates an element or a pack of them; state[0] is m of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const decayed = math::mul_add(s.weight_decay, p, s.extra[0] * g);
    state[0] = math::mul_add(s.extra[2], state[0], s.extra[1] * decayed);
    V const direction = nesterov ? math::mul_add(s.extra[2], state[0], decayed) : state[0];
    p = math::mul_add(-s.learning_rate, direction, p);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 6> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"momentum", momentum, 0., 1.},
             {"weight_decay", weight_decay, 0.},
             {"nesterov", nesterov ? 1. : 0.},
             {"dampening", dampening, 0., 1.},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(Sgd const&, Sgd const&) = default;
};

/// Gradient descent without momentum, hence without state: p −= lr · (g + weight_decay · p), with
/// −g where `maximize`.
/// @par Cost  no state array
struct PlainSgd {
  static constexpr std::string_view name = "plain SGD";  ///< in fingerprints and reports
  static constexpr std::array<StateArray, 0> states{};   ///< there is no momentum to hold

  double lr = 1e-3;          ///< learning rate, unless a step brings its own
  double weight_decay = 0.;  ///< added to the gradient as weight_decay · p
  bool maximize = false;     ///< climbs instead

  /// What one tensor needs in a step: the rate `lr_now` (in place of `lr`) and the decay, times its
  /// scales of both, and the gradient's sign.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    BasicStepScalars<Real> s{.learning_rate = lr_now * lr_scale,
                             .weight_decay = static_cast<Real>(weight_decay) * wd_scale};
    s.extra[0] = static_cast<Real>(maximize ? -1 : 1);
    return s;
  }

  /// Updates an element or a pack of them.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V*) const noexcept {
    p = math::mul_add(-s.learning_rate, math::mul_add(s.weight_decay, p, s.extra[0] * g), p);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 3> fields() const noexcept {
    return {{{"lr", lr, 0.}, {"weight_decay", weight_decay, 0.}, {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(PlainSgd const&, PlainSgd const&) = default;
};

static_assert(DescribedRule<Sgd> && RuleInDouble<Sgd>);
static_assert(DescribedRule<PlainSgd> && RuleInDouble<PlainSgd>);

}  // namespace zero::inline ZERO_NAMESPACE
