// expect: zero: a policy models no slot, or more than one
// A stage that partitions parameters but keeps full gradients is none of the paper's.
#include <zero/zero.hpp>

struct Stage {
  static constexpr std::string_view name = "own";
#ifndef ZERO_CONTROL
  static constexpr zero::Sharding sharding{.optimizer = true, .parameters = true};
#else
  static constexpr zero::Sharding sharding{true, true, true};
#endif
};

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Stage> optimizer{comm, {}};
}
