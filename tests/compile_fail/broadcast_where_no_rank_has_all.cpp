// expect: zero: no rank has all parameters under Pos[+]g[+]p: call broadcast_parameters[(]values[)]
// lines: 15
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::stage::PosGP{}};
#else
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::stage::PosG{}};
#endif
  optimizer.broadcast_parameters();
}
