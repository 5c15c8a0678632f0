// expect: not_a_policy<2, Nameless>
// lines: 15
// A rule without a name is no rule, and is not mistaken for anything else.
#include <zero/zero.hpp>

struct Nameless {
  static constexpr std::array<zero::StateArray, 0> states{};
  float lr = 1.f;
};

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer<zero::Self, Nameless> optimizer{comm, {}};
#else
  zero::ShardedOptimizer<zero::Self, zero::PlainSgd> optimizer{comm, {}};
#endif
}
