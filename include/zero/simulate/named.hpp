/// @file
/// Simulated steps of policies by the names that people type.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/planner/device.hpp"
#include "zero/planner/policies.hpp"
#include "zero/simulate/communicator.hpp"
#include "zero/simulate/transformer.hpp"

namespace zero::inline ZERO_NAMESPACE::simulate {

/// `steady_step` of the policies that a setup names. fp16 takes the time of bf16, and every rule
/// that of AdamW, which differs in the update alone.
/// @param world  a fresh one
/// @param setup  what is trained, and how
/// @param pass   computes: see `step`
/// @throws Error (invalid_argument) for a name that no policy has, and for ranks, batches and sizes
///   that make no sense
[[nodiscard]] inline StepTime steady_step(World& world,
                                          planner::Setup const& setup,
                                          Computation const& pass) {
  using namespace planner::detail;
  using Widths = Types<Fp32, Mixed<bf16>>;
  auto const& names = setup.policies;
  return visit_named(Stages{}, "stage", names.stage, [&](auto stage) {
    return visit_named(
        Widths{},
        "precision",
        names.precision == "fp16" ? "bf16" : names.precision,
        [&](auto type) {
          return visit_named(
              Accumulations{}, "accumulation", names.accumulation, [&](auto accumulation) {
                return steady_step<typename decltype(stage)::type,
                                   typename decltype(type)::type,
                                   typename decltype(accumulation)::type,
                                   AdamW>(world, setup, pass);
              });
        });
  });
}
/// The same with the products of a GPT on a device that data sheets describe: `Pass`.
[[nodiscard]] inline StepTime steady_step(World& world, planner::Setup const& setup) {
  Pass const pass(world, setup);
  return steady_step(world,
                     setup,
                     {.forward = [&](int unit) { pass.forward(unit); },
                      .backward = [&](int unit) { pass.backward(unit); }});
}

}  // namespace zero::inline ZERO_NAMESPACE::simulate
