// expect: (use of deleted function|call to deleted constructor)
// A second optimizer over the same ranks would be a second set of collectives.
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self> optimizer{comm, {}};
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer<zero::Self> copy = optimizer;
#else
  zero::ShardedOptimizer<zero::Self>& copy = optimizer;
#endif
  return copy.steps() == 0 ? 0 : 1;
}
