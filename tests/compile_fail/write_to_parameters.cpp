// expect: (read-only location|cannot assign)
// Gathered parameters are a copy: what is written into it would be lost.
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::stage::PosGP{}};
  auto weights = optimizer.parameters(0);
#ifndef ZERO_CONTROL
  weights["w"][0] = 1.f;
#else
  return static_cast<int>(weights["w"][0]);
#endif
}
