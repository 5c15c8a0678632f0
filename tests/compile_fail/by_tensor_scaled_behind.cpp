// expect: zero: the loss scale of a ByTensor is its first precision's
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  using Precision = zero::ByTensor<zero::Fp32, zero::Mixed<zero::fp16>>;
#else
  using Precision = zero::ByTensor<zero::Mixed<zero::fp16>, zero::Fp32>;
#endif
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, Precision{}};
}
