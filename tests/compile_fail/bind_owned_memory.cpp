// expect: zero: bind[(][)] is for an optimizer that works in the trainer.s memory
// lines: 15
// What the library owns cannot be lent as well.
#include <zero/zero.hpp>

#include <span>

#ifndef ZERO_CONTROL
using Memory = zero::Owned<>;
#else
using Memory = zero::Borrowed<>;
#endif

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Memory> optimizer{comm, {}};
  optimizer.bind(std::span<float>(), std::span<float>());
}
