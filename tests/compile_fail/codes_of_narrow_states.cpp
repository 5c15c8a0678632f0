// expect: zero: states of 8 bits stand for float
#include <zero/zero.hpp>

struct Halves : zero::Fp32 {
  using State = zero::bf16;
};

int main() {
  zero::Self comm;
#ifndef ZERO_CONTROL
  zero::ShardedOptimizer optimizer{
      comm, {{.name = "w", .shape = {4}}}, Halves{}, zero::AdamW8bit{}};
#else
  zero::ShardedOptimizer optimizer{comm, {{.name = "w", .shape = {4}}}, zero::AdamW8bit{}};
#endif
}
