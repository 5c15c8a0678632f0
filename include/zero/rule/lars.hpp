/// @file
/// LARS: gradient descent with momentum, at a rate for each tensor.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/rule/trust_ratio.hpp"

#include <array>
#include <cstddef>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// LARS, for large batches: momentum of gradients that are scaled, tensor by tensor, or slice by
/// slice of a stacked one, to a share of the parameters' norm.
///
///     g = maximize ? −g : g
///     m = momentum · m + ratio · (g + weight_decay · p)
///     p −= lr · m
///
/// The ratio is trust · ‖p‖ / (‖g‖ + weight_decay · ‖p‖) over the whole tensor, within [min_ratio,
/// max_ratio], and 1 where a norm is 0, whatever the bounds. A tensor whose rule has 1 for both,
/// such as norms and biases that are given one by `set_rule`, follows `Sgd`. The rate is not in the
/// momentum, as in torch's SGD and other than in the paper: the two differ when lr changes. Where a
/// norm is not finite, the whole tensor becomes NaN.
/// @par Cost    1 state array, and those of a `MeasuringRule`
/// @par Source  You et al., arXiv:1708.03888
struct Lars {
  static constexpr std::string_view name = "LARS";  ///< in fingerprints and reports
  /// The momentum.
  static constexpr std::array states{StateArray{"momentum"}};

  double lr = 1.;                        ///< learning rate, unless a step brings its own
  double momentum = 0.9;                 ///< share of itself the momentum keeps per step
  double weight_decay = 0.;              ///< added to the gradient as weight_decay · p
  double trust = 1e-3;                   ///< η: the share of ‖p‖ that a gradient is scaled to
  double min_ratio = 0.;                 ///< the least ratio
  double max_ratio = detail::any_ratio;  ///< the largest one, by default none
  bool maximize = false;                 ///< climbs instead

  /// What one tensor needs in a step: the rate `lr_now` (in place of `lr`) and the decay, times its
  /// scales of both, the gradient's sign, and the momentum's share.
  template <class Real>
  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(long,
                                                                Real lr_now,
                                                                Real lr_scale,
                                                                Real wd_scale) const noexcept {
    BasicStepScalars<Real> s{.learning_rate = lr_now * lr_scale,
                             .weight_decay = static_cast<Real>(weight_decay) * wd_scale};
    s.extra[sign] = static_cast<Real>(maximize ? -1 : 1);
    s.extra[share] = static_cast<Real>(momentum);
    s.extra[ratio] = Real(1);
    return s;
  }

  /// p and g of the formula.
  template <class V>
  ZERO_HOST_DEVICE void measure(ScalarsOf<V> const&,
                                V const& p,
                                V const& g,
                                V const*,
                                V (&numbers)[measured_numbers]) const noexcept {
    numbers[0] = p;
    numbers[1] = g;
  }

  /// Takes the ratio.
  template <class Real>
  ZERO_HOST_DEVICE void adjust(BasicStepScalars<Real>& s,
                               double const (&norms)[measured_numbers]) const noexcept {
    bool const none = norms[0] == 0. || norms[1] == 0.;
    double const decay = static_cast<double>(s.weight_decay) * norms[0];
    s.extra[ratio] = detail::finite_rate<Real>(detail::trust_ratio(
        trust * norms[0], math::sum(norms[1], decay), none, min_ratio, max_ratio));
  }

  /// Updates an element or a pack of them; state[0] is m of the formula.
  template <class V>
  ZERO_HOST_DEVICE void update(ScalarsOf<V> const& s, V& p, V const& g, V* state) const noexcept {
    V const decayed = math::mul_add(s.weight_decay, p, s.extra[sign] * g);
    state[0] = math::mul_add(s.extra[share], state[0], s.extra[ratio] * decayed);
    p = math::mul_add(-s.learning_rate, state[0], p);
  }

  /// Every hyper-parameter by name; ranks compare them.
  [[nodiscard]] constexpr std::array<RuleField, 7> fields() const noexcept {
    return {{{"lr", lr, 0.},
             {"momentum", momentum, 0., 1.},
             {"weight_decay", weight_decay, 0.},
             {"trust", trust, 0.},
             {"min_ratio", min_ratio, 0.},
             {"max_ratio", max_ratio, min_ratio},
             {"maximize", maximize ? 1. : 0.}}};
  }

  friend constexpr bool operator==(Lars const&, Lars const&) = default;

 private:
  enum Index : std::size_t { sign, share, ratio };
};

static_assert(DescribedRule<Lars> && RuleInDouble<Lars> && MeasuringRule<Lars>);

}  // namespace zero::inline ZERO_NAMESPACE
