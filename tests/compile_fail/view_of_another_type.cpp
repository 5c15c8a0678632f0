// expect: zero: a view must not outlive its guard
// A view of another type would outlive its guard as well.
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::stage::PosGP{}};
#ifndef ZERO_CONTROL
  auto const view = optimizer.parameters(0).as<float>("w");
#else
  auto const weights = optimizer.parameters(0);
  auto const view = weights.as<float>("w");
#endif
  return static_cast<int>(view[0]);
}
