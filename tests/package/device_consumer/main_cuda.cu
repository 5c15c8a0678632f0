#include <zero/comm/in_process_cuda.hpp>
#include <zero/device/allocators.hpp>
#include <zero/zero.hpp>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

int main() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    auto group = zero::InProcessCuda::group(std::vector<zero::space::Cuda>{{0, nullptr}});
    zero::ShardedOptimizer optimizer{group[0],
                                     std::vector<zero::Tensor>{{.name = "w", .shape = {64}}},
                                     zero::PlainSgd{},
                                     zero::Owned{zero::device::MallocAllocator(0)}};
    optimizer.adopt_parameters();
    optimizer.reduce(optimizer.gradients(0));
    optimizer.step();
  }
  std::printf("zero %d.%d.%d\n", zero::version.major, zero::version.minor, zero::version.patch);
  return 0;
}
