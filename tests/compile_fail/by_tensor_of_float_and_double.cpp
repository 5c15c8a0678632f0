// expect: zero: precisions of a ByTensor compute all in float, or all in double
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  using Wide = zero::Fp64;
#else
  using Wide = zero::Fp32;
#endif
  zero::ByTensor<zero::Mixed<zero::bf16>, Wide> const precision{};
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, precision};
}
