/// @file
/// What a rule computes once a step, as function objects that run in a space.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A rule with what tells one tensor's update from another's.
/// @tparam Real  of the arithmetic
template <Rule R, class Real>
struct RatedRule {
  R rule{};
  double learning_rate_scale = 1.;  ///< of the tensor
  double weight_decay_scale = 1.;   ///< of the tensor
  bool own_rate = false;            ///< the learning rate is the rule's, not the step's

  [[nodiscard]] ZERO_HOST_DEVICE BasicStepScalars<Real> scalars(
      StepTerms const& terms) const noexcept {
    auto const rate = static_cast<Real>(own_rate ? rule.lr : terms.learning_rate);
    return rule.scalars(terms.step,
                        rate,
                        static_cast<Real>(learning_rate_scale),
                        static_cast<Real>(weight_decay_scale));
  }
};

/// Computes the scalars of some rules, unless the step is skipped.
template <Rule R, class Real, std::size_t capacity>
struct ComputeScalars {
  StepTerms const* terms = nullptr;
  BasicStepScalars<Real>* scalars = nullptr;  ///< one of each rule
  std::size_t count = 0;
  RatedRule<R, Real> rules[capacity] = {};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    if (terms->skipped != 0) return;
    for (std::size_t i = 0; i < count; ++i) scalars[i] = rules[i].scalars(*terms);
  }
};

/// Adjusts the scalars of one tensor to its norms, unless the step is skipped.
template <class R, class Real>
struct AdjustScalars {
  R rule{};
  StepTerms const* terms = nullptr;
  std::int64_t const* words = nullptr;  ///< of one accumulator for each norm
  BasicStepScalars<Real>* scalars = nullptr;

  ZERO_HOST_DEVICE void operator()() const noexcept {
    if (terms->skipped != 0) return;
    double norms[measured_numbers];
    for (std::size_t i = 0; i < measured_numbers; ++i) {
      norms[i] = __builtin_sqrt(ExactSum::value(words + i * ExactSum::word_count));
    }
    rule.adjust(*scalars, norms);
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
