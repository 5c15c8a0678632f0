// expect: zero: exactly one communicator must be named
// lines: 15
#include <zero/zero.hpp>

#ifndef ZERO_CONTROL
using Optimizer = zero::ShardedOptimizer<zero::stage::PosG, zero::Fp32>;
#else
using Optimizer = zero::ShardedOptimizer<zero::stage::PosG, zero::Fp32, zero::Self>;
#endif

int main() { return Optimizer::plan({}, {}).world_size - 1; }
