/// @file
/// What a rule computes once a step: in the memory of the space, by the call that decides the step.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/stations/control.hpp"
#include "zero/optimizer/stations/rules.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A rule with what tells one tensor's update from another's.
template <Rule R>
struct RatedRule {
  R rule{};
  float learning_rate_scale = 1.f;  ///< of the tensor
  float weight_decay_scale = 1.f;   ///< of the tensor
  bool own_rate = false;            ///< the learning rate is the rule's, not the step's

  [[nodiscard]] ZERO_HOST_DEVICE StepScalars scalars(StepTerms const& terms) const noexcept {
    float const rate = own_rate ? static_cast<float>(rule.lr) : terms.learning_rate;
    return rule.scalars(terms.step, rate, learning_rate_scale, weight_decay_scale);
  }
};

/// Computes the scalars of some rules, unless the step is skipped.
template <Rule R, std::size_t capacity>
struct ComputeScalars {
  StepTerms const* terms = nullptr;
  StepScalars* scalars = nullptr;  ///< one of each rule
  std::size_t count = 0;
  RatedRule<R> rules[capacity] = {};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    if (terms->skipped != 0) return;
    for (std::size_t i = 0; i < count; ++i) {
      StepScalars const computed = rules[i].scalars(*terms);
      // Other numbers were here, and will be again.
      __builtin_memcpy(scalars + i, &computed, sizeof(computed));
    }
  }
};

/// One call after the other.
template <class First, class Second>
struct Both {
  First first{};
  Second second{};

  ZERO_HOST_DEVICE void operator()() const noexcept {
    first();
    second();
  }
};
template <class First, class Second>
Both(First, Second) -> Both<First, Second>;

/// Where the scalars of each tensor are. Those of the first few combinations of a rule and scales
/// are computed when a step is decided. Further ones are computed before each use.
template <Rule R>
class Scalars {
  /// As many as an argument of a kernel has room for beside others.
  static constexpr std::size_t capacity =
      std::clamp(std::size_t{2048} / sizeof(RatedRule<R>), std::size_t{1}, StepControl::rates);

 public:
  using OfStep = ComputeScalars<R, capacity>;
  using OfOne = ComputeScalars<R, 1>;

  /// @param control  in the memory of the space
  Scalars(Model const& model, Rules<R> const& rules, StepControl* control)
      : model_(&model), rules_(&rules), control_(control) {}

  /// What is to be called once the step's terms are known.
  [[nodiscard]] OfStep const& of_step() {
    if (known_ != rules_->owned_count()) collect();
    for (std::size_t i = 0; i < step_.count; ++i) step_.rules[i].rule = *from_[i];
    return step_;
  }

  /// Those of a tensor in this step; null if they are still to be computed.
  [[nodiscard]] StepScalars const* find(Tensor const& tensor, R const& rule) const noexcept {
    for (std::size_t i = 0; i < step_.count; ++i) {
      if (is(i, tensor, rule)) return step_.scalars + i;
    }
    return nullptr;
  }

  /// Computes those of one tensor, to be used before this is called again.
  /// @param terms  of its update
  [[nodiscard]] OfOne of_one(std::size_t storage, StepTerms const* terms) const {
    return {terms, control_->scalars() + StepControl::rates, 1, {rated(storage)}};
  }

 private:
  [[nodiscard]] RatedRule<R> rated(std::size_t storage) const {
    Tensor const& tensor = model_->tensors[storage];
    return {rules_->of(storage), tensor.learning_rate, tensor.weight_decay, rules_->owned(storage)};
  }
  [[nodiscard]] bool is(std::size_t i, Tensor const& tensor, R const& rule) const noexcept {
    return from_[i] == &rule && step_.rules[i].learning_rate_scale == tensor.learning_rate &&
           step_.rules[i].weight_decay_scale == tensor.weight_decay;
  }
  void collect() {
    known_ = rules_->owned_count();
    step_ = {&control_->outcome.terms, control_->scalars()};
    for (std::size_t t = 0; t < model_->tensors.size() && step_.count < capacity; ++t) {
      R const& rule = rules_->of(t);
      if (model_->partition.placement().places()[t].frozen) continue;
      if (find(model_->tensors[t], rule) != nullptr) continue;
      from_[step_.count] = &rule;
      step_.rules[step_.count++] = rated(t);
    }
  }

  Model const* model_;
  Rules<R> const* rules_;
  StepControl* control_;
  OfStep step_{};
  std::array<R const*, capacity> from_{};  ///< where each rule was found
  std::size_t known_ = ~std::size_t{0};    ///< how many rules of their own there were then
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
