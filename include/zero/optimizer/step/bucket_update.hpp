/// @file
/// The pass over a bucket: unscale, rule, cast.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/step/presence.hpp"
#include "zero/optimizer/step/rules.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Where the scalars of each tensor are. Those of the first few combinations of a rule and scales
/// are computed when a step is decided. Further ones are computed before each use.
class Scalars {
 public:
  /// @param control  in the memory of the space
  ZERO_APART ZERO_COLD Scalars(Model const& model,
                               Rules const& rules,
                               StepControl* control,
                               Kernels const& kernels);

  /// The combinations that are computed when a step is decided, in the order of `of_step()`.
  ZERO_APART [[nodiscard]] std::vector<TensorRule> const& at_once();
  /// Where they are computed to.
  [[nodiscard]] std::byte* of_step() const noexcept { return control_->scalars(); }
  /// Those of a tensor in this step; null if they are still to be computed.
  ZERO_APART [[nodiscard]] void const* find(std::size_t storage) const noexcept;
  /// Where those of one tensor are computed to, to be used before others are.
  [[nodiscard]] void* of_one() const noexcept { return control_->scalars() + capacity_ * bytes_; }
  /// A tensor's combination.
  ZERO_APART [[nodiscard]] TensorRule of(std::size_t storage) const noexcept;

 private:
  Model const* model_;
  Rules const* rules_;
  StepControl* control_;
  std::size_t capacity_;  ///< combinations that are computed at once, at most
  std::size_t bytes_;     ///< of one's scalars
  std::vector<TensorRule> at_once_;
  std::size_t known_ = ~std::size_t{0};  ///< how many rules of their own there were then
};

/// Advances master weights, states and parameters of what this rank updates.
class Update {
 public:
  /// @param control  in the memory of the space, as what `counts` points to
  ZERO_APART ZERO_COLD Update(Model const& model,
                              ParameterStore const& parameters,
                              StateStore const& states,
                              Rules const& rules,
                              Presence const& presence,
                              StepControl* control,
                              TensorCounts const& counts,
                              Kernels kernels);

  /// Has loaded what a decision and updates take.
  ZERO_APART ZERO_COLD void load(Kernels const& loading) const;

  /// Decides whether the step updates, and computes what all its updates need.
  ZERO_APART void decide(Decide const& decide);

  /// Updates this rank's range of one bucket, unless the terms in the space's memory say to skip.
  /// @param gradients  of that range, from its first element on
  ZERO_APART void apply(BucketSpan const& bucket, Array gradients);

 private:
  /// Neighbouring pieces that can be updated in one pass: small tensors must not cost a call each.
  struct Run {
    UpdateBuffers arrays{};
    std::byte* master_end = nullptr;
    std::byte const* parameter_end = nullptr;
    std::byte const* gradient_end = nullptr;
    std::size_t tensor = 0;  ///< the first
    bool own = false;        ///< it may have missed updates, and is alone
  };

  /// Adds `next` to `run`, if both can be updated in one pass.
  ZERO_APART [[nodiscard]] bool extend(Run& run, Run const& next) const;
  ZERO_APART void update(Run const& run) const;

  Model const* model_;
  ParameterStore const* parameters_;
  StateStore const* states_;
  Rules const* rules_;
  Presence const* presence_;
  Scalars scalars_;
  StepControl* control_;
  TensorCounts counts_;
  Kernels kernels_;
  std::vector<void*> state_;  ///< of the run
};

#if ZERO_BODIES

ZERO_BODY Scalars::Scalars(Model const& model,
                           Rules const& rules,
                           StepControl* control,
                           Kernels const& kernels)
    : model_(&model),
      rules_(&rules),
      control_(control),
      capacity_(kernels.rates_at_once()),
      bytes_(kernels.scalar_bytes()) {
  at_once_.reserve(capacity_);
}

ZERO_BODY TensorRule Scalars::of(std::size_t storage) const noexcept {
  Tensor const& tensor = model_->tensors[storage];
  return {rules_->of(storage), tensor.learning_rate, tensor.weight_decay, rules_->owned(storage)};
}

ZERO_BODY void const* Scalars::find(std::size_t storage) const noexcept {
  TensorRule const wanted = of(storage);
  for (std::size_t i = 0; i < at_once_.size(); ++i) {
    TensorRule const& known = at_once_[i];
    if (known.rule == wanted.rule && known.learning_rate_scale == wanted.learning_rate_scale &&
        known.weight_decay_scale == wanted.weight_decay_scale) {
      return of_step() + i * bytes_;
    }
  }
  return nullptr;
}

ZERO_BODY std::vector<TensorRule> const& Scalars::at_once() {
  if (known_ == rules_->owned_count()) return at_once_;
  known_ = rules_->owned_count();
  at_once_.clear();
  for (std::size_t t = 0; t < model_->tensors.size() && at_once_.size() < capacity_; ++t) {
    if (model_->partition.place(t).frozen) continue;
    if (find(t) == nullptr) at_once_.push_back(of(t));
  }
  return at_once_;
}

ZERO_BODY Update::Update(Model const& model,
                         ParameterStore const& parameters,
                         StateStore const& states,
                         Rules const& rules,
                         Presence const& presence,
                         StepControl* control,
                         TensorCounts const& counts,
                         Kernels kernels)
    : model_(&model),
      parameters_(&parameters),
      states_(&states),
      rules_(&rules),
      presence_(&presence),
      scalars_(model, rules, control, kernels),
      control_(control),
      counts_(counts),
      kernels_(kernels),
      state_(states.arrays()) {}

ZERO_BODY void Update::load(Kernels const& loading) const {
  TensorRule const rule{rules_->common()};
  OwnTerms const own{};
  // For few rules there may be another kernel than for many.
  std::vector<TensorRule> const rules(loading.rates_at_once(), rule);
  loading.decide({}, nullptr, nullptr, rules.data(), 1);
  loading.decide({}, nullptr, nullptr, rules.data(), rules.size());
  loading.prepare(&own, nullptr, nullptr, rule);
  loading.prepare(nullptr, nullptr, nullptr, rule);
  std::vector<void*> const none(states_->arrays());
  loading.update(rule.rule, nullptr, nullptr, {.state = none.data(), .count = 1});
}

ZERO_BODY void Update::decide(Decide const& decide) {
  std::vector<TensorRule> const& rules = scalars_.at_once();
  kernels_.decide(decide, &control_->outcome.terms, scalars_.of_step(), rules.data(), rules.size());
}

ZERO_BODY void Update::apply(BucketSpan const& bucket, Array gradients) {
  Run run;
  bool const has_master = kernels_.types().has_master();
  model_->partition.for_each_segment(states_->updated(bucket), [&](Segment const& piece) {
    Array const master = states_->master(bucket, piece, *parameters_);
    auto* const gradient = gradients.at(piece.in_range);
    Run next;
    next.arrays = {.master = master.first,
                   .gradient = gradient,
                   .state = state_.data(),
                   .count = static_cast<std::size_t>(piece.count)};
    next.master_end = master.at(piece.count);
    next.gradient_end = gradient + gradients.bytes(piece.count);
    next.tensor = piece.tensor;
    next.own = presence_->may_have_rested(piece.tensor);
    if (has_master) {
      Array const parameter{parameters_->segment(bucket, piece), parameters_->dtype()};
      next.arrays.parameter = parameter.first;
      next.parameter_end = parameter.at(piece.count);
    }
    if (extend(run, next)) return;
    update(run);
    for (std::size_t k = 0; k < state_.size(); ++k) {
      state_[k] = states_->state(bucket, piece, k).first;
    }
    run = next;
  });
  update(run);
}

ZERO_BODY bool Update::extend(Run& run, Run const& next) const {
  Tensor const& tensor = model_->tensors[run.tensor];
  Tensor const& also = model_->tensors[next.tensor];
  bool const goes_on =
      run.arrays.count > 0 && !run.own && !next.own &&
      rules_->of(run.tensor) == rules_->of(next.tensor) && next.arrays.master == run.master_end &&
      next.arrays.gradient == run.gradient_end && next.arrays.parameter == run.parameter_end &&
      also.learning_rate == tensor.learning_rate && also.weight_decay == tensor.weight_decay;
  if (!goes_on) return false;
  run.arrays.count += next.arrays.count;
  run.master_end = next.master_end;
  run.parameter_end = next.parameter_end;
  run.gradient_end = next.gradient_end;
  return true;
}

ZERO_BODY void Update::update(Run const& run) const {
  if (run.arrays.count == 0) return;
  StepTerms const* const terms = run.own ? &control_->own : &control_->outcome.terms;
  void const* scalars = run.own ? nullptr : scalars_.find(run.tensor);
  if (scalars == nullptr) {
    OwnTerms const own{control_, counts_, run.tensor, presence_->may_rest(run.tensor)};
    kernels_.prepare(run.own ? &own : nullptr, terms, scalars_.of_one(), scalars_.of(run.tensor));
    scalars = scalars_.of_one();
  }
  kernels_.update(rules_->of(run.tensor), terms, scalars, run.arrays);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
