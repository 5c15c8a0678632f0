/// @file
/// What policies decide before anything is allocated: the partition, and the plan.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/layout/tensor_types.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <string>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// A model in buckets, as the policies have it, and in which types its kinds are held.
struct TypedPartition {
  Partition partition;
  KindTypes types;
};

/// @throws Error (invalid_argument) for a model that makes no sense, or not with these precisions
ZERO_APART [[nodiscard]] ZERO_COLD TypedPartition partition_of(PolicyFacts const& policies,
                                                               int world_size,
                                                               Bucket const& bucket,
                                                               std::vector<Tensor> const& tensors);

/// What the policies call themselves.
ZERO_APART [[nodiscard]] ZERO_COLD PlanNames plan_names(PolicyFacts const& policies,
                                                        RuleCalls const& rule);

/// What a rank will hold and send.
ZERO_APART [[nodiscard]] ZERO_COLD Plan plan_of(PolicyFacts const& policies,
                                                RuleCalls const& rule,
                                                PlanOptions const& options,
                                                std::vector<Tensor> const& tensors,
                                                Bucket const& bucket,
                                                Prefetch const& prefetch);

#if ZERO_BODIES

ZERO_BODY TypedPartition partition_of(PolicyFacts const& policies,
                                      int world_size,
                                      Bucket const& bucket,
                                      std::vector<Tensor> const& tensors) {
  StorageForm const form = policies.form();
  Merge const merge = form.refresh == StorageForm::Refresh::gather ? Merge::into_padding
                      : form.gradients == StorageForm::Gradients::pooled
                          ? Merge::within_largest_unit
                          : Merge::freely;
  TensorTypes const types = tensor_types(tensors, policies.types);
  TypedPartition model{
      .partition = Partition(tensors,
                             {.world_size = world_size,
                              .bucket_elements = bucket.bytes / size_of(types.types.front().wire),
                              .merge = merge,
                              .lent = policies.borrowed},
                             types.numbers),
      .types = {}};
  model.types = kind_types(model.partition.placement(), types.types);
  return model;
}

ZERO_BODY PlanNames plan_names(PolicyFacts const& policies, RuleCalls const& rule) {
  return {.stage = std::string(policies.stage),
          .precision = std::string(policies.precision),
          .rule = std::string(rule.name),
          .accumulation = std::string(policies.accumulation)};
}

ZERO_BODY Plan plan_of(PolicyFacts const& policies,
                       RuleCalls const& rule,
                       PlanOptions const& options,
                       std::vector<Tensor> const& tensors,
                       Bucket const& bucket,
                       Prefetch const& prefetch) {
  TypedPartition const model =
      partition_of(policies, options.world_size, bucket, take_apart(tensors).tensors);
  return make_plan(model.partition,
                   policies.choice(prefetch.depth, options.communicator_bytes),
                   model.types,
                   plan_names(policies, rule),
                   options.micro_steps);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
