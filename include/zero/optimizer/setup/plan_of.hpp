/// @file
/// What policies decide before anything is allocated: the partition, and the plan.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/layout/partition.hpp"
#include "zero/layout/plan.hpp"
#include "zero/layout/stacked.hpp"
#include "zero/layout/tensor.hpp"
#include "zero/optimizer/tables/engine_setup.hpp"

#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// How the policies have tensors put into buckets.
ZERO_APART [[nodiscard]] PartitionOptions partition_options(PolicyFacts const& policies,
                                                            int world_size,
                                                            Bucket const& bucket);

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

ZERO_BODY PartitionOptions partition_options(PolicyFacts const& policies,
                                             int world_size,
                                             Bucket const& bucket) {
  StorageForm const form = policies.form();
  Merge const merge = form.refresh == StorageForm::Refresh::gather ? Merge::into_padding
                      : form.gradients == StorageForm::Gradients::pooled
                          ? Merge::within_largest_unit
                          : Merge::freely;
  return {.world_size = world_size,
          .bucket_elements = bucket.bytes / size_of(policies.types.wire),
          .merge = merge,
          .lent = policies.borrowed};
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
  return make_plan(Partition(take_apart(tensors).tensors,
                             partition_options(policies, options.world_size, bucket)),
                   policies.choice(prefetch.depth, options.communicator_bytes),
                   {policies.types},
                   plan_names(policies, rule),
                   options.micro_steps);
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
