// expect: type of an element is no policy.*not_a_policy<3, zero::.*bf16>
// lines: 15
#include <zero/zero.hpp>

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::bf16{}};
#else
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::Mixed<zero::bf16>{}};
#endif
}
