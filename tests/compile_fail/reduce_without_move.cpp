// expect: zero: reduce[(][)] takes gradients away
// lines: 15
// Spent buffers are given away visibly.
#include <zero/zero.hpp>

#include <utility>

int main() {
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}};
  auto gradients = optimizer.gradients(0);
#ifndef ZERO_CONTROL
  optimizer.reduce(gradients);
#else
  optimizer.reduce(std::move(gradients));
#endif
}
