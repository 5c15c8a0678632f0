// expect: zero::Fp32.*<2, .*<3, float>.*<4, double>.*number is no.*<5, int>.*string is no.*<6
#include <zero/zero.hpp>

int main() {
#ifndef ZERO_CONTROL
  using Optimizer = zero::ShardedOptimizer<zero::Self, zero::fp16, float, double, int, char const*>;
#else
  using Optimizer = zero::ShardedOptimizer<zero::Self, zero::Mixed<zero::fp16>>;
#endif
  return Optimizer::plan({}, {{.name = "w", .shape = {4}}}).world_size - 1;
}
