/// @file
/// Simulated steps of policies by name, compiled once, since it is all optimizers at once.
#pragma once

#include "model/step.hpp"
#include "model/world.hpp"

namespace plan {

/// `steady_step` of the policies that a setup names. fp16 takes the time of bf16, and every rule
/// that of AdamW, which differs in the update alone.
/// @param world  a fresh one
/// @param setup  what is trained, and how
/// @param pass   computes: see `step`
/// @throws Error (invalid_argument) for a name that no policy has, and for ranks, batches and sizes
///   that make no sense
[[nodiscard]] StepTime steady_step(World& world, Setup const& setup, Computation const& pass);
/// The same with the products of a GPT on a device that data sheets describe: `Pass`.
[[nodiscard]] StepTime steady_step(World& world, Setup const& setup);

/// Seconds of such a step. Of many micro-steps a few are simulated: each further one takes as long
/// as that before it.
[[nodiscard]] double seconds_of_step(Cluster const& cluster, Setup setup);

}  // namespace plan
