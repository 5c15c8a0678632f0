/// @file
/// The pass over a bucket: unscale, rule, cast.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/stations/control.hpp"
#include "zero/optimizer/stations/presence.hpp"
#include "zero/optimizer/stations/rules.hpp"
#include "zero/optimizer/stores/parameter_store.hpp"
#include "zero/optimizer/stores/state_store.hpp"

#include <cstddef>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Advances master weights, states and parameters of what this rank updates.
template <class Slots>
class Update {
 public:
  using Space = typename Slots::Space;
  using Rule = typename Slots::Rule;
  using Gradient = typename Slots::Gradient;

  /// @param control  in the memory of the space, as what `counts` points to
  Update(std::vector<Tensor> const& tensors,
         Partition const& partition,
         ParameterStore<Slots> const& parameters,
         StateStore<Slots> const& states,
         Rules<Rule> const& rules,
         Presence const& presence,
         StepControl* control,
         TensorCounts const& counts,
         Space space)
      : tensors_(&tensors),
        partition_(&partition),
        parameters_(&parameters),
        states_(&states),
        rules_(&rules),
        presence_(&presence),
        control_(control),
        counts_(counts),
        space_(std::move(space)) {}

  /// Has loaded what updates take.
  /// @param loading  a LoadingSpace's
  void load(Space const& loading) const {
    loading.call(OwnTerms{});
    loading.update(rules_->common(), nullptr, {}, Arrays{.count = 1});
  }

  /// Updates this rank's range of one bucket, unless the terms in the space's memory say to skip.
  /// @param gradients  of that range, from its first element on
  void apply(BucketSpan const& bucket, Gradient const* gradients) const {
    Run run;
    partition_->for_each_segment(states_->updated(bucket), [&](Segment const& piece) {
      Tensor const& tensor = (*tensors_)[piece.tensor];
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
      run = {next, {tensor.learning_rate, tensor.weight_decay}, &rule, piece.tensor, own};
      if (rules_->owned(piece.tensor)) run.rates.learning_rate = static_cast<float>(rule.lr);
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
    UpdateRates rates{};
    Rule const* rule = nullptr;
    std::size_t tensor = 0;  ///< the first
    bool own = false;        ///< it may have missed updates, and is alone

    [[nodiscard]] bool extend(Arrays const& next, Tensor const& described, Rule const& by) {
      if (own || current.count == 0 || rule != &by ||
          next.master != current.master + current.count ||
          next.gradient != current.gradient + current.count ||
          (Slots::has_master && next.parameter != current.parameter + current.count) ||
          described.learning_rate != rates.learning_rate_scale ||
          described.weight_decay != rates.weight_decay_scale) {
        return false;
      }
      current.count += next.count;
      return true;
    }
  };

  void update(Run const& run) const {
    if (run.current.count == 0) return;
    if (run.own) {
      space_.call(OwnTerms{control_, counts_, run.tensor, presence_->may_rest(run.tensor)});
    }
    space_.update(
        *run.rule, run.own ? &control_->own : &control_->outcome.terms, run.rates, run.current);
  }

  std::vector<Tensor> const* tensors_;
  Partition const* partition_;
  ParameterStore<Slots> const* parameters_;
  StateStore<Slots> const* states_;
  Rules<Rule> const* rules_;
  Presence const* presence_;
  StepControl* control_;
  TensorCounts counts_;
  [[no_unique_address]] Space space_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
