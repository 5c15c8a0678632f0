/// @file
/// All that one device holds and sends for a model: the library's part exactly, the model's own
/// activations as an estimate.
#pragma once

#include "policies.hpp"
#include "transformer.hpp"
#include "zero/activations.hpp"
#include "zero/base/bytes.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/self.hpp"
#include "zero/transfer/host.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace plan {

using namespace zero;

/// A run that is planned: model, ranks and policies.
struct Setup {
  Transformer model{};     ///< what is trained
  int ranks = 1;           ///< devices
  int model_parallel = 1;  ///< N_m: ranks that hold a model together; divides `ranks`
  PolicyNames policies{};  ///< of the optimizer
  /// Of blocks, until the backward pass: "keep" all activations; their inputs alone "whole", in
  /// shares of the model-parallel ranks ("pa"), or those in the host's memory ("pa+cpu").
  std::string activations = "keep";
  std::uint64_t batch = 1;        ///< sequences per model and micro-step
  std::uint64_t micro_steps = 1;  ///< forward and backward passes in a step
  Bucket bucket{};                ///< bytes that travel together
  Prefetch prefetch{};            ///< units, and layers' checkpoints, gathered ahead
  /// What the communicator holds on a rank: `planned_bytes` of `zero::Mpi` says it.
  std::uint64_t communicator_bytes = 0;

  /// Models that are trained on data of their own: the paper's N_d.
  [[nodiscard]] int models() const { return ranks / model_parallel; }
};

/// What `Setup::activations` may be, from the most memory to the least.
[[nodiscard]] inline std::vector<std::string> activation_names() {
  return {"keep", "whole", "pa", "pa+cpu"};
}

/// What one device holds, and sends in a step; the same on all of them.
struct DevicePlan {
  Plan optimizer{};                 ///< `ShardedOptimizer::plan`
  ActivationPlan checkpoints{};     ///< `Activations::plan`; empty where all activations are kept
  std::uint64_t working_bytes = 0;  ///< ESTIMATE: activations that the model itself holds
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
    return checked_add(held().total(), working_bytes);
  }
  /// All bytes that go to other devices in a step.
  [[nodiscard]] std::uint64_t sent_bytes() const {
    return checked_add(checked_add(optimizer.sent.total(), model_bytes), checkpoint_bytes);
  }
};

/// ESTIMATE of the activations that a model holds itself: 12 b·s·h elements for each block whose
/// activations are kept, or for the one at work where inputs alone are kept, and b·s·V scores of
/// the head. Of the 12, the inputs of attention and of MLP (2) are whole on each of N_m ranks; all
/// else is divided by N_m.
/// @par Source  ZeRO §3.2, footnote 3: 12 · hidden · batch · sequence · layers elements; the
///   division and the scores are not the paper's
[[nodiscard]] inline std::uint64_t working_elements(Setup const& setup) {
  auto const parts = static_cast<std::uint64_t>(setup.model_parallel);
  std::uint64_t const tokens = checked_mul(setup.batch, setup.model.sequence);
  std::uint64_t const wide = checked_mul(tokens, setup.model.hidden);
  std::uint64_t const block = checked_add(checked_mul(2, wide), checked_mul(10, wide) / parts);
  auto const blocks =
      setup.activations == "keep" ? static_cast<std::uint64_t>(setup.model.layers) : 1;
  return checked_add(checked_mul(blocks, block),
                     checked_mul(tokens, ceil_div(setup.model.vocab, parts)));
}

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
                      : precision == "bf16" ? DType::bf16
                                            : DType::f16;
  std::vector<ActivationCheckpoint> inputs;
  for (int layer = 0; layer < setup.model.layers; ++layer) {
    inputs.push_back({.name = "input",
                      .layer = layer,
                      .elements = checked_mul(checked_mul(setup.batch, setup.model.sequence),
                                              setup.model.hidden),
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
  std::uint64_t const width = plan.optimizer.storage.bytes.parameter;
  plan.checkpoints = plan_checkpoints(setup);
  plan.working_bytes = checked_mul(working_elements(setup), width);
  auto const parts = static_cast<std::uint64_t>(setup.model_parallel);
  // A recomputed block repeats the two all-reduces of its forward pass.
  std::uint64_t const reductions = setup.activations == "keep" ? 4 : 6;
  std::uint64_t const wide =
      checked_mul(checked_mul(setup.batch, setup.model.sequence), setup.model.hidden);
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
         {setup.model_parallel, " model-parallel ranks do not divide ", setup.ranks, " ranks"});
  }
  if (setup.batch < 1) fail(ErrorKind::invalid_argument, "a batch has at least 1 sequence");
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
