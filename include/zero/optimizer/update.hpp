/// @file
/// The owned shard's update: unscale, rule, cast, in one pass per bucket.
#pragma once

#include "zero/concepts/space.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/parameter_store.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zero::inline v0_1::detail {

/// Master weights and optimizer states of one rank, and the pass that advances them.
///
/// A rank updates its share of each bucket where optimizer states are sharded, and the whole bucket
/// where they are not.
template <class Slots>
class Update {
 public:
  using Space = typename Slots::Space;
  using Rule = typename Slots::Rule;
  using Parameter = typename Slots::Parameter;
  using Master = typename Slots::Master;
  using State = typename Slots::State;
  using Gradient = typename Slots::Gradient;
  static constexpr bool sharded = Slots::sharding.optimizer;
  static constexpr auto arrays = static_cast<std::size_t>(Slots::state_arrays);

  template <class ArenaT>
  Update(std::vector<Tensor> const& tensors,
         Partition const& partition,
         int rank,
         StorageElements const& elements,
         StepTerms const* terms,
         ArenaT& arena)
      : tensors_(&tensors),
        partition_(&partition),
        rank_(rank),
        space_(arena.space()),
        terms_(terms),
        master_(arena.template take<Master>(Role::master, elements.master)) {
    for (auto& state : states_) state = arena.template take<State>(Role::state, elements.state);
  }

  /// First logical element of a bucket that this rank updates, and how many follow.
  [[nodiscard]] std::uint64_t begin(BucketSpan const& bucket) const noexcept {
    return sharded ? bucket.begin + static_cast<std::uint64_t>(rank_) * bucket.shard : bucket.begin;
  }
  [[nodiscard]] std::uint64_t count(BucketSpan const& bucket) const noexcept {
    return sharded ? partition_->owned_count(bucket, rank_) : bucket.count;
  }

  /// Master weights of a piece of the updated range.
  [[nodiscard]] Master* master(BucketSpan const& bucket,
                               Segment const& piece,
                               ParameterStore<Slots> const& parameters) const {
    if constexpr (Slots::has_master) {
      return master_.data() + offset(bucket) + piece.range_offset;
    } else {
      return parameters.segment(bucket, piece);
    }
  }
  [[nodiscard]] std::array<State*, arrays> states(BucketSpan const& bucket,
                                                  Segment const& piece) const {
    std::array<State*, arrays> result{};
    for (std::size_t k = 0; k != arrays; ++k) {
      result[k] = states_[k].data() + offset(bucket) + piece.range_offset;
    }
    return result;
  }

  /// Updates this rank's range of one bucket, unless the terms in the space's memory say to skip.
  /// @param gradients  of that range, from its first element on
  void apply(Rule const& rule,
             BucketSpan const& bucket,
             Gradient const* gradients,
             ParameterStore<Slots> const& parameters) {
    Run run;
    partition_->for_each_segment(begin(bucket), count(bucket), [&](Segment const& piece) {
      Tensor const& tensor = (*tensors_)[piece.tensor];
      Arrays next{.master = master(bucket, piece, parameters),
                  .parameter = nullptr,
                  .gradient = gradients + piece.range_offset,
                  .state = states(bucket, piece),
                  .count = static_cast<std::size_t>(piece.count)};
      if constexpr (Slots::has_master) next.parameter = parameters.segment(bucket, piece);
      if (run.extend(next, tensor)) return;
      update(rule, run);
      run = {next, {tensor.learning_rate, tensor.weight_decay}};
    });
    update(rule, run);
  }

 private:
  using Arrays = UpdateArrays<Master, Parameter, Gradient, State, arrays>;

  /// Neighbouring pieces that can be updated in one pass: small tensors must not cost a call each.
  struct Run {
    Arrays current{};
    UpdateRates rates{};

    [[nodiscard]] bool extend(Arrays const& next, Tensor const& tensor) {
      if (current.count == 0 || next.master != current.master + current.count ||
          next.gradient != current.gradient + current.count ||
          (Slots::has_master && next.parameter != current.parameter + current.count) ||
          tensor.learning_rate != rates.learning_rate_scale ||
          tensor.weight_decay != rates.weight_decay_scale) {
        return false;
      }
      current.count += next.count;
      return true;
    }
  };

  void update(Rule const& rule, Run const& run) const {
    if (run.current.count > 0) space_.update(rule, terms_, run.rates, run.current);
  }

  [[nodiscard]] std::uint64_t offset(BucketSpan const& bucket) const noexcept {
    if (sharded) return bucket.shard_begin;
    Group const& group = partition_->groups()[static_cast<std::size_t>(bucket.group)];
    return group.padded_begin + (bucket.begin - group.begin);
  }

  std::vector<Tensor> const* tensors_;
  Partition const* partition_;
  int rank_;
  [[no_unique_address]] Space space_;
  StepTerms const* terms_;
  std::span<Master> master_;
  std::array<std::span<State>, arrays> states_{};
};

}  // namespace zero::inline v0_1::detail
