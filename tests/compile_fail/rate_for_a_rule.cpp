// expect: learning rate belongs to a rule.*not_a_policy<3, double>
// lines: 15
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer<zero::Self> optimizer{comm, {{.name = "w", .shape = {4}}}, 1e-3};
#else
  zero::ShardedOptimizer<zero::Self> optimizer{
      comm, {{.name = "w", .shape = {4}}}, zero::AdamW{.lr = 1e-3f}};
#endif
}
