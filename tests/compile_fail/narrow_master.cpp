// expect: Master is at least as wide as Parameter
// What rounds masters to something wider has no use.
#include <zero/zero.hpp>

struct Narrow : zero::Fp32 {
#ifndef ZERO_CONTROL
  using Parameter = double;
#endif
  friend bool operator==(Narrow const&, Narrow const&) = default;
};

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Narrow> optimizer{comm, {}};
}
