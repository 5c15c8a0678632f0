/// @file
/// The pass over a bucket: unscale, rule, cast.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/stations/control.hpp"
#include "zero/optimizer/stations/presence.hpp"
#include "zero/optimizer/stations/rules.hpp"
#include "zero/optimizer/stations/scalars.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"
#include "zero/optimizer/stores/state_store.hpp"

#include <cstddef>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Advances master weights, states and parameters of what this rank updates.
template <class Slots>
class Update {
 public:
  using Space = typename Slots::Space;
  using Rule = typename Slots::Rule;
  using Gradient = typename Slots::Gradient;

  /// @param control  in the memory of the space, as what `counts` points to
  Update(Model const& model,
         ParameterStore<Slots> const& parameters,
         StateStore<Slots> const& states,
         Rules<Rule> const& rules,
         Presence const& presence,
         StepControl* control,
         TensorCounts const& counts,
         Space space)
      : model_(&model),
        parameters_(&parameters),
        states_(&states),
        rules_(&rules),
        presence_(&presence),
        scalars_(model, rules, control),
        control_(control),
        counts_(counts),
        space_(std::move(space)) {}

  /// Has loaded what a decision and updates take.
  /// @param loading  a LoadingSpace's
  void load(Space const& loading) const {
    loading.call(Both{Decide{}, typename Scalars<Rule>::OfStep{}});
    loading.call(Both{OwnTerms{}, typename Scalars<Rule>::OfOne{}});
    loading.call(typename Scalars<Rule>::OfOne{});
    loading.update(rules_->common(), nullptr, nullptr, Arrays{.count = 1});
  }

  /// Decides whether the step updates, and computes what all its updates need.
  void decide(Decide const& decide) { space_.call(Both{decide, scalars_.of_step()}); }

  /// Updates this rank's range of one bucket, unless the terms in the space's memory say to skip.
  /// @param gradients  of that range, from its first element on
  void apply(BucketSpan const& bucket, Gradient const* gradients) const {
    Run run;
    model_->partition.for_each_segment(states_->updated(bucket), [&](Segment const& piece) {
      Tensor const& tensor = model_->tensors[piece.tensor];
      Arrays next{.master = states_->master(bucket, piece, *parameters_),
                  .parameter = nullptr,
                  .gradient = piece.in_range.in(gradients),
                  .state = states_->states(bucket, piece),
                  .count = static_cast<std::size_t>(piece.count)};
      if constexpr (Slots::has_master) next.parameter = parameters_->segment(bucket, piece);
      Rule const& rule = rules_->of(piece.tensor);
      bool const own = presence_->may_have_rested(piece.tensor);
      if (!own && run.extend(next, tensor, rule)) return;
      update(run);
      run = {next, &tensor, &rule, piece.tensor, own};
    });
    update(run);
  }

 private:
  using Arrays = UpdateArrays<typename Slots::Master,
                              typename Slots::Parameter,
                              Gradient,
                              typename Slots::State,
                              StateStore<Slots>::arrays>;

  /// Neighbouring pieces that can be updated in one pass: small tensors must not cost a call each.
  struct Run {
    Arrays current{};
    Tensor const* described = nullptr;  ///< the first
    Rule const* rule = nullptr;
    std::size_t tensor = 0;  ///< the first
    bool own = false;        ///< it may have missed updates, and is alone

    [[nodiscard]] bool extend(Arrays const& next, Tensor const& also, Rule const& by) {
      if (own || current.count == 0 || rule != &by ||
          next.master != current.master + current.count ||
          next.gradient != current.gradient + current.count ||
          (Slots::has_master && next.parameter != current.parameter + current.count) ||
          also.learning_rate != described->learning_rate ||
          also.weight_decay != described->weight_decay) {
        return false;
      }
      current.count += next.count;
      return true;
    }
  };

  void update(Run const& run) const {
    if (run.current.count == 0) return;
    StepTerms const* const terms = run.own ? &control_->own : &control_->outcome.terms;
    StepScalars const* scalars = run.own ? nullptr : scalars_.find(*run.described, *run.rule);
    if (scalars == nullptr) {
      auto const compute = scalars_.of_one(run.tensor, terms);
      scalars = compute.scalars;
      if (run.own) {
        OwnTerms const prepare{control_, counts_, run.tensor, presence_->may_rest(run.tensor)};
        space_.call(Both{prepare, compute});
      } else {
        space_.call(compute);
      }
    }
    space_.update(*run.rule, terms, scalars, run.current);
  }

  Model const* model_;
  ParameterStore<Slots> const* parameters_;
  StateStore<Slots> const* states_;
  Rules<Rule> const* rules_;
  Presence const* presence_;
  Scalars<Rule> scalars_;
  StepControl* control_;
  TensorCounts counts_;
  [[no_unique_address]] Space space_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
