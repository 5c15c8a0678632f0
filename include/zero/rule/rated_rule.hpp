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

/// Adjusts the scalars of one tensor to its norms, if they are known, unless the step is skipped.
template <class R, class Real>
struct AdjustScalars {
  R rule{};
  StepTerms const* terms = nullptr;
  std::int64_t const* words = nullptr;  ///< of one accumulator for each norm; null if not known
  BasicStepScalars<Real>* scalars = nullptr;

  ZERO_HOST_DEVICE void operator()() const noexcept {
    if (terms->skipped != 0 || words == nullptr) return;
    double norms[measured_numbers] = {};
    // In a loop, so that a device has the code for a sum once, and each norm goes to the place of
    // the one before: an array with an index that is not known would not be kept in registers.
    ZERO_UNROLL(1)
    for (std::size_t i = 0; i < measured_numbers; ++i) {
      for (std::size_t k = 1; k < measured_numbers; ++k) norms[k - 1] = norms[k];
      double const square = ExactSum::value(words + i * ExactSum::word_count);
      norms[measured_numbers - 1] = __builtin_sqrt(square);
    }
    rule.adjust(*scalars, norms);
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
