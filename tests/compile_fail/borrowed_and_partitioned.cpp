// expect: zero: borrowed memory cannot be partitioned; use a stage up to Pos.g or Owned<>
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {}, zero::stage::PosGP{}, zero::Borrowed<>{}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::stage::PosG{}, zero::Borrowed<>{}};
#endif
}
