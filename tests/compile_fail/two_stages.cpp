// expect: zero: two stages are named
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {}, zero::stage::Pos{}, zero::stage::PosG{}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::stage::Pos{}};
#endif
}
