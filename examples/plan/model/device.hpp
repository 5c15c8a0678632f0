/// @file
/// All that one device holds and sends for a model: the library's part exactly, the model's own
/// activations as an estimate.
#pragma once

#include "setup.hpp"
#include "working.hpp"
#include "zero/activations.hpp"
#include "zero/base/bytes.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/self.hpp"
#include "zero/transfer/host_transfer.hpp"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace plan {

using namespace zero;

/// What one device holds, and sends in a step; the same on all of them.
struct DevicePlan {
  Plan optimizer{};              ///< `ShardedOptimizer::plan`
  ActivationPlan checkpoints{};  ///< `Activations::plan`; empty where all activations are kept
  WorkingBytes working{};        ///< ESTIMATE: what the model itself holds
  /// Elements sent for the model's own all-reduces over its ranks, by the paper's formula.
  std::uint64_t model_elements = 0;
  std::uint64_t model_bytes = 0;          ///< the same in bytes
  std::uint64_t checkpoint_elements = 0;  ///< sent to gather shares of checkpoints
  std::uint64_t checkpoint_bytes = 0;     ///< the same in bytes
  std::uint64_t slower_bytes = 0;         ///< moved to and from the host's memory

  /// All that the library holds, by role.
  [[nodiscard]] MemoryBytes held() const {
    MemoryBytes sum = optimizer.memory;
    for (int r = 0; r < role_count; ++r) {
      auto const role = static_cast<Role>(r);
      sum[role] = checked_add(sum[role], checkpoints.memory[role]);
    }
    return sum;
  }
  /// Parameters, gradients, master weights and optimizer states: what the paper's formulas count.
  [[nodiscard]] std::uint64_t state_bytes() const {
    MemoryBytes const& by = optimizer.memory;
    return by[Role::parameters] + by[Role::gradients] + by[Role::master] + by[Role::state];
  }
  /// All bytes of the device, the estimate included.
  [[nodiscard]] std::uint64_t total_bytes() const {
    return checked_add(held().total(), working.total());
  }
  /// All bytes that go to other devices in a step.
  [[nodiscard]] std::uint64_t sent_bytes() const {
    return checked_add(checked_add(optimizer.sent.total(), model_bytes), checkpoint_bytes);
  }
};

namespace detail {

template <class Placement>
[[nodiscard]] ActivationPlan plan_checkpoints(
    Setup const& setup, std::vector<ActivationCheckpoint> const& checkpoints) {
  return Activations<Self, Placement, HostTransfer>::plan(
      setup.model_parallel, checkpoints, MicroBatches{}, setup.prefetch);
}

/// The inputs of all blocks.
[[nodiscard]] inline ActivationPlan plan_checkpoints(Setup const& setup) {
  std::string_view const precision = setup.policies.precision;
  DType const dtype = precision == "fp32"   ? DType::f32
                      : precision == "fp16" ? DType::f16
                                            : DType::bf16;
  std::vector<ActivationCheckpoint> inputs;
  for (int layer = 0; layer < setup.model.layers; ++layer) {
    inputs.push_back({.name = "input",
                      .layer = layer,
                      .elements = checked_mul(setup.tokens(), setup.model.hidden),
                      .dtype = dtype});
  }
  if (setup.activations == "whole") return plan_checkpoints<activation::Whole>(setup, inputs);
  if (setup.activations == "pa") return plan_checkpoints<activation::Pa>(setup, inputs);
  if (setup.activations == "pa+cpu") return plan_checkpoints<activation::PaCpu>(setup, inputs);
  if (setup.activations == "keep") return {};
  fail(ErrorKind::invalid_argument,
       {"activations are kept as keep, whole, pa or pa+cpu, not '", setup.activations, "'"});
}

/// What depends on batch and activations; the optimizer's plan is there.
inline void plan_activations(Setup const& setup, DevicePlan& plan) {
  std::uint64_t const width = size_of(plan.optimizer.types.front().parameter);
  plan.checkpoints = plan_checkpoints(setup);
  plan.working = working_bytes(setup, width);
  auto const parts = static_cast<std::uint64_t>(setup.model_parallel);
  // A recomputed block repeats the two all-reduces of its forward pass.
  std::uint64_t const reductions = setup.activations == "keep" ? 4 : 6;
  std::uint64_t const wide = checked_mul(setup.tokens(), setup.model.hidden);
  std::uint64_t const once = checked_mul(checked_mul(wide, 2 * reductions), parts - 1) / parts;
  std::uint64_t const steps = setup.micro_steps;
  plan.model_elements =
      checked_mul(checked_mul(once, static_cast<std::uint64_t>(setup.model.layers)), steps);
  plan.model_bytes = checked_mul(plan.model_elements, width);
  plan.checkpoint_elements = checked_mul(plan.checkpoints.sent_elements, steps);
  plan.checkpoint_bytes = checked_mul(plan.checkpoints.sent_bytes, steps);
  plan.slower_bytes = checked_mul(plan.checkpoints.slower_bytes, steps);
}

}  // namespace detail

/// Plans a run. The library's part is what `ShardedOptimizer::plan` and `Activations::plan` say.
/// Over the model's ranks a block sends 4 all-reduces of b·s·h elements, 6 with recomputation, each
/// of which is twice its elements times (N_m-1)/N_m; Pa adds an all-gather.
/// @throws Error (invalid_argument) for sizes, ranks and names that make no sense, or do not fit in
///   64 bits
/// @par Cost    milliseconds, whatever the number of ranks and parameters
/// @par Source  ZeRO §8 for the all-reduces
[[nodiscard]] inline DevicePlan plan_device(Setup const& setup) {
  if (setup.ranks < 1 || setup.model_parallel < 1 || setup.ranks % setup.model_parallel != 0) {
    fail(ErrorKind::invalid_argument,
         {setup.model_parallel,
          " model-parallel ranks do not divide ",
          setup.ranks,
          setup.ranks == 1 ? " rank" : " ranks"});
  }
  if (setup.batch < 1) fail(ErrorKind::invalid_argument, "a batch has at least 1 sequence");
  auto const attentions = attention_names();
  if (std::find(attentions.begin(), attentions.end(), setup.attention) == attentions.end()) {
    fail(ErrorKind::invalid_argument,
         {"attention is plain, selective or fused, not '", setup.attention, "'"});
  }
  DevicePlan plan;
  plan.optimizer = plan_of(setup.policies,
                           {.world_size = setup.models(),
                            .micro_steps = setup.micro_steps,
                            .communicator_bytes = setup.communicator_bytes},
                           describe(setup.model, setup.model_parallel),
                           setup.bucket,
                           setup.prefetch);
  if (setup.micro_steps > 1 && setup.policies.accumulation == "none") {
    fail(ErrorKind::invalid_argument,
         {setup.micro_steps, " micro-steps add up somewhere: the accumulation is full or shard"});
  }
  detail::plan_activations(setup, plan);
  return plan;
}

}  // namespace plan
