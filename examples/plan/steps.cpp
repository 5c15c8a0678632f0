#include "steps.hpp"

#include "model/policies.hpp"

#include <cstdint>

namespace plan {

StepTime steady_step(World& world, Setup const& setup, Computation const& pass) {
  using namespace detail;
  using Widths = Types<Fp32, Mixed<bf16>>;
  auto const& names = setup.policies;
  return visit_named(Stages{}, "stage", names.stage, [&](auto stage) {
    return visit_named(
        Widths{}, "precision", names.precision == "fp32" ? "fp32" : "bf16", [&](auto type) {
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

StepTime steady_step(World& world, Setup const& setup) {
  Pass const pass(world, setup);
  return steady_step(world,
                     setup,
                     {.forward = [&](int unit) { pass.forward(unit); },
                      .backward = [&](int unit) { pass.backward(unit); }});
}

double seconds_of_step(Cluster const& cluster, Setup setup) {
  auto const seconds = [&](std::uint64_t micro_steps) {
    setup.micro_steps = micro_steps;
    World world(cluster);
    return steady_step(world, setup).seconds;
  };
  std::uint64_t const all = setup.micro_steps;
  if (all <= 5) return seconds(all);
  double const two = seconds(2);
  return two + static_cast<double>(all - 2) * (seconds(3) - two);
}

}  // namespace plan
