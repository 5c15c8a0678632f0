// expect: zero: masters beside bf16 are zero::Fp32Masters, zero::HalfAway, zero::Rest16 or
// zero::Rest8
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  using Precision = zero::Mixed<zero::bf16, zero::StochasticRounding>;
#else
  using Precision = zero::Bf16<zero::StochasticRounding>;
#endif
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, Precision{}};
}
