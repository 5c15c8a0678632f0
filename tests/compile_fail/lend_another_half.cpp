// expect: zero: what is lent is of zero::bf16 or zero::fp16
// Memory of one type is not read as another's.
#include <zero/zero.hpp>

#include <cstdint>
#include <span>
#include <vector>

#ifndef ZERO_CONTROL
using Half = std::uint16_t;
#else
using Half = zero::bf16;
#endif

int main() {
  zero::Self comm;
  std::vector<Half> memory(3);
  std::vector<zero::bf16> gradients(3);
  zero::ShardedOptimizer<zero::Self, zero::Mixed<zero::bf16>, zero::Borrowed<>> optimizer{
      comm, {{.name = "w", .shape = {3}}}};
  optimizer.bind(std::span(memory), std::span(gradients));
}
