// expect: zero: a view must not outlive its guard
// lines: 15
// The guard would release what it gathered before the view is used.
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::stage::PosGP{}};
#ifndef ZERO_CONTROL
  auto const view = optimizer.parameters(0)["w"];
#else
  auto const weights = optimizer.parameters(0);
  auto const view = weights["w"];
#endif
  return static_cast<int>(view[0]);
}
