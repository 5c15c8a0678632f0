// expect: zero: masters of fp16 parameters are fp32
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  using Precision = zero::Mixed<zero::fp16, zero::Rest8>;
#else
  using Precision = zero::Mixed<zero::bf16, zero::Rest8>;
#endif
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, Precision{}};
}
