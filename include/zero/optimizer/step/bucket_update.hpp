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
#include "zero/optimizer/step/randomness.hpp"
#include "zero/optimizer/step/rules.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"

#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Advances master weights, states and parameters of what this rank updates.
class BucketUpdate {
 public:
  /// @param control  in the memory of the space, as what `counts` points to
  ZERO_APART ZERO_COLD BucketUpdate(Model const& model,
                                    ParameterStore const& parameters,
                                    StateStore const& states,
                                    Rules const& rules,
                                    Presence const& presence,
                                    StepControl* control,
                                    TensorCounts const& counts,
                                    Randomness const& randomness,
                                    Kernels kernels);

  /// Has loaded what a decision takes, and what updates of a kind do.
  ZERO_APART ZERO_COLD void load(Kernels const& loading) const;
  ZERO_APART ZERO_COLD void load_kind(Kernels const& loading) const;

  /// Decides whether the step updates, and computes what all its updates need.
  ZERO_APART void decide(Decide const& decide);

  /// Updates this rank's range of one bucket, unless the terms in the space's memory say to skip.
  /// @param gradients  of that range, from its first element on
  ZERO_APART void apply(BucketSpan const& bucket, Array gradients);

  /// What an update of a tensor is computed from.
  struct Terms {
    StepTerms const* step;
    void const* scalars;  ///< until the next call
  };
  /// @param own       it may have missed updates
  /// @param adjusted  to what was measured of it
  ZERO_APART [[nodiscard]] Terms terms_of(std::size_t tensor, bool own, bool adjusted) const;

 private:
  /// Neighbouring pieces that can be updated in one pass: small tensors must not cost a call each.
  struct Run {
    UpdateBuffers arrays{};
    std::byte* master_end = nullptr;
    std::byte const* parameter_end = nullptr;
    std::byte const* gradient_end = nullptr;
    std::size_t tensor = 0;  ///< the first
    std::size_t kind = 0;    ///< of all
    bool own = false;        ///< it may have missed updates, and is alone
    bool alone = false;      ///< it has random bits, or norms, of its own
  };

  /// Adds `next` to `run`, if both can be updated in one pass.
  ZERO_APART [[nodiscard]] bool extend(Run& run, Run const& next) const;
  ZERO_APART void update(Run const& run) const;

  Model const* model_;
  ParameterStore const* parameters_;
  StateStore const* states_;
  Rules const* rules_;
  Presence const* presence_;
  StepControl* control_;
  TensorCounts counts_;
  Randomness randomness_;
  Kernels kernels_;
  std::vector<void*> state_;  ///< of the run
};

#if ZERO_BODIES

ZERO_BODY BucketUpdate::BucketUpdate(Model const& model,
                                     ParameterStore const& parameters,
                                     StateStore const& states,
                                     Rules const& rules,
                                     Presence const& presence,
                                     StepControl* control,
                                     TensorCounts const& counts,
                                     Randomness const& randomness,
                                     Kernels kernels)
    : model_(&model),
      parameters_(&parameters),
      states_(&states),
      rules_(&rules),
      presence_(&presence),
      control_(control),
      counts_(counts),
      randomness_(randomness),
      kernels_(kernels),
      state_(kernels.types().states().size()) {}

ZERO_BODY void BucketUpdate::load(Kernels const& loading) const {
  TensorRule const rule{rules_->common()};
  OwnTerms const own{};
  // For few rules there may be another kernel than for many.
  std::vector<TensorRule> const rules(loading.rates_at_once(), rule);
  loading.decide({}, nullptr, nullptr, rules.data(), 1);
  loading.decide({}, nullptr, nullptr, rules.data(), rules.size());
  loading.prepare(&own, nullptr, nullptr, rule);
  loading.prepare(nullptr, nullptr, nullptr, rule);
}

ZERO_BODY void BucketUpdate::load_kind(Kernels const& loading) const {
  TensorRule const rule{rules_->common()};
  std::vector<void*> const none(state_.size());
  UpdateBuffers const one{.state = none.data(), .count = 1};
  loading.update(rule.rule, nullptr, nullptr, one);
  if (loading.measures()) loading.measure(rule.rule, nullptr, nullptr, one, nullptr);
}

ZERO_BODY void BucketUpdate::decide(Decide const& decide) {
  std::vector<TensorRule> const& rules = rules_->combinations();
  kernels_.decide(decide, &control_->outcome.terms, control_->scalars, rules.data(), rules.size());
}

ZERO_BODY void BucketUpdate::apply(BucketSpan const& bucket, Array gradients) {
  Run run;
  Kernels const kernels = kernels_.of(bucket.kind());
  bool const has_master = kernels.types().has_master();
  bool const random = kernels.random();
  model_->partition.for_each_segment(states_->updated(bucket), [&](Segment const& piece) {
    Array const parameter = parameters_->segment(bucket, piece);
    Array const master = has_master ? states_->at(bucket, 0).from(piece.in_range) : parameter;
    auto* const gradient = gradients.at(piece.in_range);
    Run next;
    next.arrays = {.master = master.first,
                   .gradient = gradient,
                   .state = state_.data(),
                   .count = static_cast<std::size_t>(piece.count)};
    next.master_end = master.at(piece.count);
    next.gradient_end = gradient + gradients.bytes(piece.count);
    next.tensor = piece.tensor;
    next.kind = bucket.kind();
    next.own = presence_->may_have_rested(piece.tensor);
    next.alone = random || kernels_.measures();
    if (random) next.arrays.random = randomness_.of(piece);
    if (has_master) {
      next.arrays.parameter = parameter.first;
      next.parameter_end = parameter.at(piece.count);
    }
    if (extend(run, next)) return;
    update(run);
    for (std::size_t k = 0; k < kernels.types().states().size(); ++k) {
      state_[k] = states_->at(bucket, k + 1).at(piece.in_range);
    }
    run = next;
  });
  update(run);
}

ZERO_BODY bool BucketUpdate::extend(Run& run, Run const& next) const {
  Tensor const& tensor = model_->tensors[run.tensor];
  Tensor const& also = model_->tensors[next.tensor];
  bool const goes_on =
      run.arrays.count > 0 && !run.own && !next.own && !next.alone &&
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

ZERO_BODY void BucketUpdate::update(Run const& run) const {
  if (run.arrays.count == 0) return;
  Terms const terms = terms_of(run.tensor, run.own, kernels_.measures());
  kernels_.of(run.kind).update(rules_->of(run.tensor), terms.step, terms.scalars, run.arrays);
}

ZERO_BODY BucketUpdate::Terms BucketUpdate::terms_of(std::size_t tensor,
                                                     bool own,
                                                     bool adjusted) const {
  StepTerms const* const terms = own ? &control_->own : &control_->outcome.terms;
  std::size_t const known = rules_->combinations().size();
  std::size_t const combination = own || adjusted ? known : rules_->combination_of(tensor);
  // Behind those of the step, those of one update at a time.
  std::byte* const scalars = control_->scalars + combination * kernels_.scalar_bytes();
  if (combination == known) {
    OwnTerms const single{control_, counts_, tensor, presence_->may_rest(tensor)};
    TensorRule rule = rules_->rated(tensor);
    if (adjusted) rule.norms = counts_.norms(model_->partition.place(tensor).trained);
    kernels_.prepare(own ? &single : nullptr, terms, scalars, rule);
  }
  return {terms, scalars};
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
