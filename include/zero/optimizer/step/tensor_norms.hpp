/// @file
/// What a rule measures of whole tensors, before any of them is updated.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/traffic_plan.hpp"
#include "zero/optimizer/held/arrays.hpp"
#include "zero/optimizer/model.hpp"
#include "zero/optimizer/step/bucket_update.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/step/presence.hpp"
#include "zero/optimizer/step/rules.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The norms of all tensors, for rules that ask for them.
///
/// Each rank measures what it owns, also where every rank updates everything, and all add up their
/// accumulators. Nothing but these is written: states move in the update alone, where what was
/// measured is computed once more. That is 44 bytes an element with two states in fp32, of which
/// moving states while measuring would save 4, and then every rank would have to measure all that
/// it updates, and states that are rounded at random would be read in another form than they are
/// kept.
///
/// Over a grid the first rank of a model axis measures all tensors, and the others those that are
/// partitioned over it; norms are those of whole tensors.
class TensorNorms {
 public:
  /// @param divided  where another rank of the model axis measures the tensors that are not
  ///   partitioned over it: the model; null to measure all
  TensorNorms(Model const& model,
              int rank,
              ParameterStore const& parameters,
              StateStore const& states,
              Rules const& rules,
              Presence const& presence,
              BucketUpdate const& update,
              TensorCounts const& counts,
              AnySpace space,
              Kernels kernels,
              std::vector<Tensor> const* divided)
      : model_(&model),
        rank_(rank),
        parameters_(&parameters),
        states_(&states),
        rules_(&rules),
        presence_(&presence),
        update_(&update),
        counts_(counts),
        space_(space),
        kernels_(kernels),
        divided_(divided),
        state_(kernels.types().states().size()) {}

  /// Forgets what was measured in the step before.
  ZERO_APART void reset() const;
  /// Measures this rank's share of one bucket.
  /// @param gradients  of that share, from its first element on
  ZERO_APART void add(BucketSpan const& bucket, Array gradients);
  /// Adds up what the ranks of a group have measured. Collective; blocks.
  ZERO_APART void sum(Ranks& ranks) const;

 private:
  Model const* model_;
  int rank_;
  ParameterStore const* parameters_;
  StateStore const* states_;
  Rules const* rules_;
  Presence const* presence_;
  BucketUpdate const* update_;
  TensorCounts counts_;
  AnySpace space_;
  Kernels kernels_;
  std::vector<Tensor> const* divided_;
  std::vector<void*> state_;  ///< of a piece
};

#if ZERO_BODIES

ZERO_BODY void TensorNorms::reset() const {
  constexpr std::size_t bytes = TensorCounts::norm_words * sizeof(std::int64_t);
  space_.zero(counts_.norms(0), model_->partition.placement().trained_tensors() * bytes);
}

ZERO_BODY void TensorNorms::add(BucketSpan const& bucket, Array gradients) {
  Kernels const kernels = kernels_.of(bucket.kind());
  bool const has_master = kernels.types().has_master();
  model_->partition.for_each_segment(bucket.share(rank_), [&](Segment const& piece) {
    std::size_t const tensor = piece.tensor;
    if (divided_ != nullptr && !(*divided_)[tensor].partitioned) return;
    Array const parameter = parameters_->segment(bucket, piece);
    UpdateBuffers arrays{.master = parameter.first,
                         .gradient = gradients.at(piece.in_range),
                         .state = state_.data(),
                         .count = static_cast<std::size_t>(piece.count)};
    if (has_master) {
      arrays.master = states_->owned(bucket, 0).at(piece.in_range);
      arrays.parameter = parameter.first;
    }
    for (std::size_t k = 0; k < state_.size(); ++k) {
      state_[k] = states_->owned(bucket, k + 1).at(piece.in_range);
    }
    auto const [terms, scalars] =
        update_->terms_of(tensor, presence_->may_have_rested(tensor), false);
    std::int64_t* const norms = counts_.norms(model_->partition.place(tensor).trained);
    kernels.measure(rules_->of(tensor), terms, scalars, arrays, norms);
  });
}

ZERO_BODY void TensorNorms::sum(Ranks& ranks) const {
  constexpr auto at_once = static_cast<std::size_t>(norms_at_once(TensorCounts::norm_words));
  std::size_t const all = model_->partition.placement().trained_tensors();
  for (std::size_t first = 0; first < all; first += at_once) {
    std::size_t const tensors = (std::min)(at_once, all - first);
    ranks.run({.op = Op::all_reduce,
               .dtype = DType::i64,
               .accumulate = DType::i64,
               .count = tensors * TensorCounts::norm_words,
               .send = counts_.norms(first),
               .recv = counts_.norms(first)});
  }
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
