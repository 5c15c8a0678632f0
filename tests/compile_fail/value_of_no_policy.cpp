// expect: zero: a value.s type is none of this optimizer.s policies
// lines: 15
// A value of another rule than the one that is named must not be dropped in silence.
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer<zero::Self, zero::Sgd> optimizer{comm, {}, zero::AdamW{.lr = 1.f}};
#else
  zero::ShardedOptimizer<zero::Self, zero::Sgd> optimizer{comm, {}, zero::Sgd{.lr = 1.f}};
#endif
}
