// One GPU, several ranks: threads share it, each with a stream of its own. This is how to try a
// stage before there are more GPUs.
//
// The host waits for nothing inside a step: the decision to clip or skip is made on the device.
//
// prints: 4 ranks, 60 steps, last norm 0\.00.*parameter 0\.250

#include <zero/comm/in_process_cuda.hpp>
#include <zero/comm/run_ranks.hpp>
#include <zero/device/allocators.hpp>
#include <zero/zero.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

constexpr std::size_t weight_count = 1000;

__global__ void backward(float* gradient, float const* weight) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < weight_count) gradient[i] += weight[i] - 0.25f;
}

void train(zero::InProcessCuda& comm) {
  zero::space::Cuda const space = comm.space();  // a device, and the stream of this rank
  zero::ShardedOptimizer opt{comm,
                             std::vector<zero::Tensor>{{.name = "w", .shape = {weight_count}}},
                             zero::stage::PosGP{},
                             zero::PlainSgd{.lr = 0.2f},
                             zero::Owned{zero::device::MallocAllocator(space.device())}};
  opt.load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
    std::ranges::fill(out, 0.5f);  // the host's memory: uploaded
  });

  cudaLaunchConfig_t launch{};  // backward<<<blocks, threads, 0, stream>>>
  launch.gridDim = dim3((weight_count + 255) / 256);
  launch.blockDim = dim3(256);
  launch.stream = space.stream();
  for (int step = 0; step < 60; ++step) {
    {
      auto w = opt.parameters(0);  // gathered in the stream; the pointers are the device's
      auto g = opt.gradients(0);
      float const* const weight = w["w"].data();
      zero::device::check(cudaLaunchKernelEx(&launch, backward, g["w"].data(), weight), "backward");
      opt.reduce(std::move(g));
    }
    opt.enqueue_step({.max_norm = 1.});  // can be captured in a CUDA graph
  }

  zero::StepReport const last = opt.report();  // of the last step; waits for it
  float value = 0.f;
  auto const w = opt.parameters(0);
  space.download(&value, w["w"].data(), sizeof(value));
  if (comm.rank() != 0) return;
  std::printf("%d ranks, %ld steps, last norm %.4f, ", comm.size(), last.step, last.grad_norm);
  std::printf("parameter %.3f\n", double{value});
}

int main() {
  std::vector<zero::space::Cuda> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    cudaStream_t stream = nullptr;
    zero::device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    ranks.emplace_back(0, stream);  // all on device 0
  }
  zero::run_ranks(zero::InProcessCuda::group(ranks), train);
}
