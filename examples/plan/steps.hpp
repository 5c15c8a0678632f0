/// @file
/// Simulated steps of policies by name: `zero::simulate::steady_step`, compiled once, since it is
/// all optimizers at once.
#pragma once

#include "zero/simulate/communicator.hpp"
#include "zero/simulate/transformer.hpp"

namespace plan {

[[nodiscard]] zero::simulate::StepTime steady_step(zero::simulate::World& world,
                                                   zero::planner::Setup const& setup);
[[nodiscard]] zero::simulate::StepTime steady_step(zero::simulate::World& world,
                                                   zero::planner::Setup const& setup,
                                                   zero::simulate::Computation const& pass);

}  // namespace plan
