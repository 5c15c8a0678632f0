// expect: not_the_communicator<1, zero::.*::Self>
// lines: 15
// The optimizer would refer to what is gone.
#include <zero/zero.hpp>

int main() {
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer<zero::Self> optimizer{zero::Self{}, {{.name = "w", .shape = {4}}}};
#else
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self> optimizer{comm, {{.name = "w", .shape = {4}}}};
#endif
}
