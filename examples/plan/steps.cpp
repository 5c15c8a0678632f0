#include "steps.hpp"

#include "zero/simulate/named.hpp"

namespace plan {

using namespace zero::simulate;

StepTime steady_step(World& world, zero::planner::Setup const& setup) {
  return zero::simulate::steady_step(world, setup);
}
StepTime steady_step(World& world, zero::planner::Setup const& setup, Computation const& pass) {
  return zero::simulate::steady_step(world, setup, pass);
}

}  // namespace plan
