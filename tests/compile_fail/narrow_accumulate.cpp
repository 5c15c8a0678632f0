// expect: zero: a precision's five types are float, double, bf16 or fp16
// Sums narrower than what is summed would lose what ranks send.
#include <zero/zero.hpp>

struct Narrow : zero::Fp32 {
#ifndef ZERO_CONTROL
  using Accumulate = zero::bf16;
#endif
  friend bool operator==(Narrow const&, Narrow const&) = default;
};

int main() {
  zero::Self comm;
  zero::ShardedOptimizer<zero::Self, Narrow> optimizer{comm, {}};
}
