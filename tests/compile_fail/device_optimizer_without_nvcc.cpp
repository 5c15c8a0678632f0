// expect: zero: compile this file with nvcc
#include <zero/comm/in_process_cuda.hpp>
#include <zero/device/allocators.hpp>
#include <zero/zero.hpp>

#include <optional>

using Memory = zero::Owned<zero::device::MallocAllocator>;
using Optimizer = zero::ShardedOptimizer<zero::InProcessCuda, Memory>;

// Who makes an optimizer names its kernels. What needs none may be compiled anywhere: a plan, and
// all that is done with an optimizer from elsewhere.
std::uint64_t planned() { return Optimizer::plan({}, {}).memory.total(); }
void step(Optimizer& optimizer) {
  optimizer.reduce(optimizer.gradients(0));
  optimizer.enqueue_step();
}

#ifndef ZERO_CONTROL
void make(std::optional<Optimizer>& optimizer, zero::InProcessCuda& comm, Memory const& memory) {
  optimizer.emplace(comm, std::vector<zero::Tensor>(), memory);
}
#endif
