// expect: zero: ByTensor lists precisions
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  using Precision = zero::ByTensor<zero::bf16, zero::Fp32>;
#else
  using Precision = zero::ByTensor<zero::Mixed<zero::bf16>, zero::Fp32>;
#endif
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, Precision{}};
}
