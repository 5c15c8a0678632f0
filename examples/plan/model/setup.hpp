/// @file
/// A run that is planned, as plain data.
#pragma once

#include "policies.hpp"
#include "transformer.hpp"
#include "zero/layout/plan.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace plan {

using namespace zero;

/// A run that is planned: model, ranks, policies, and the program that computes.
struct Setup {
  Transformer model{};     ///< what is trained
  int ranks = 1;           ///< devices
  int model_parallel = 1;  ///< N_m: ranks that hold a model together; divides `ranks`
  PolicyNames policies{};  ///< of the optimizer
  /// Of blocks, until the backward pass: "keep" all activations; their inputs alone "whole", in
  /// shares of the model-parallel ranks ("pa"), or those in the host's memory ("pa+cpu").
  std::string activations = "keep";
  /// Scores of attention: "plain" kernels write them and keep them, "selective" ones compute them
  /// again, "fused" ones (FlashAttention) never write them.
  std::string attention = "fused";
  bool fused_rows = true;          ///< are norms, sums and dropout one kernel where they can be?
  bool sequence_parallel = false;  ///< do N_m ranks divide what is between their products, too?
  std::uint64_t batch = 1;         ///< sequences per model and micro-step
  std::uint64_t micro_steps = 1;   ///< forward and backward passes in a step
  Bucket bucket{};                 ///< bytes that travel together
  Prefetch prefetch{};             ///< units, and layers' checkpoints, gathered ahead
  /// What the communicator holds on a rank: `planned_bytes` of `zero::Mpi` says it.
  std::uint64_t communicator_bytes = 0;

  /// Models that are trained on data of their own: the paper's N_d.
  [[nodiscard]] int models() const { return ranks / model_parallel; }
  /// Of a micro-step of one model.
  [[nodiscard]] std::uint64_t tokens() const { return checked_mul(batch, model.sequence); }
};

/// What `Setup::activations` may be, from the most memory to the least.
[[nodiscard]] inline std::vector<std::string> activation_names() {
  return {"keep", "whole", "pa", "pa+cpu"};
}
/// What `Setup::attention` may be, from the most memory to the least.
[[nodiscard]] inline std::vector<std::string> attention_names() {
  return {"plain", "selective", "fused"};
}

}  // namespace plan
