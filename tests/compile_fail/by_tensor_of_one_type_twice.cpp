// expect: zero: two precisions of a ByTensor have parameters of one type
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  using Half = zero::MixedFloatGradients<zero::bf16>;
#else
  using Half = zero::MixedFloatGradients<zero::fp16>;
#endif
  zero::ByTensor<zero::Mixed<zero::bf16>, Half> const precision{};
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, precision};
}
