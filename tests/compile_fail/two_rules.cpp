// expect: zero: two rules are named
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {}, zero::AdamW{}, zero::Sgd{}};
#else
  zero::ShardedOptimizer optimizer{comm, {}, zero::Sgd{}};
#endif
}
