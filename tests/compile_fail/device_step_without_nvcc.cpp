// expect: zero: compile this file with nvcc
#include <zero/comm/in_process_cuda.hpp>
#include <zero/device/allocators.hpp>
#include <zero/zero.hpp>

using Optimizer =
    zero::ShardedOptimizer<zero::InProcessCuda, zero::Owned<zero::device::MallocAllocator>>;

// What needs no kernel may be compiled anywhere.
std::uint64_t planned() { return Optimizer::plan({}, {}).memory.total(); }

#ifndef ZERO_CONTROL
void step(Optimizer& optimizer) { optimizer.enqueue_step(); }
#else
void step(Optimizer& optimizer);
#endif
