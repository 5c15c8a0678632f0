// A rank on each GPU: the communicator is NCCL's, the loop stays.
//
// The ranks are threads here; the guide beside this file has the main of one process per rank.
//
// prints: [1-9]+ rank.s. over NCCL, ordered sums, last norm 0\.00.*parameter 0\.250

#include <zero/comm/nccl.hpp>
#include <zero/zero.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using Comm = zero::Nccl<>;
constexpr std::size_t weight_count = 1000;

__global__ void backward(float* gradient, float const* weight) {
  std::size_t const i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x;
  if (i < weight_count) gradient[i] += weight[i] - 0.25f;
}

void train(Comm& comm) {
  zero::ShardedOptimizer opt{comm,
                             std::vector<zero::Tensor>{{.name = "w", .shape = {weight_count}}},
                             zero::stage::PosG{},
                             zero::PlainSgd{.lr = 0.2f},
                             zero::Owned{comm.allocator()}};  // ncclMemAlloc, registered
  opt.load_parameters(
      [](zero::Tensor const&, std::size_t, std::span<float> out) { std::ranges::fill(out, 0.5f); });
  cudaLaunchConfig_t launch{};  // backward<<<blocks, threads, 0, stream>>>
  launch.gridDim = dim3((weight_count + 255) / 256);
  launch.blockDim = dim3(256);
  launch.stream = comm.space().stream();
  for (int step = 0; step < 60; ++step) {
    {
      auto w = opt.parameters(0);
      auto g = opt.gradients(0);
      float const* const weight = w["w"].data();
      zero::device::check(cudaLaunchKernelEx(&launch, backward, g["w"].data(), weight), "backward");
      opt.reduce(std::move(g));
    }
    opt.enqueue_step({.max_norm = 1.});
  }

  double const norm = opt.report().grad_norm;
  float value = 0.f;
  auto const w = opt.parameters(0);
  comm.space().download(&value, w["w"].data(), sizeof(value));
  if (comm.rank() != 0) return;
  std::string const sums(comm.report().reduction);  // what is in use
  std::printf("%d rank(s) over NCCL, %s sums, last norm %.4f, parameter %.3f\n",
              comm.size(),
              sums.c_str(),
              norm,
              double{value});
}

int main() {
  int devices = 0;
  zero::device::check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  Comm::UniqueId const id = Comm::unique_id();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < devices; ++rank) {
    ranks.emplace_back([=] {
      zero::device::check(cudaSetDevice(rank), "cudaSetDevice");
      cudaStream_t stream = nullptr;
      zero::device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
      zero::nccl::Options options;
      options.deadline_s = 60;  // without progress; then the group is aborted and all calls throw
      Comm comm{zero::nccl::NewGroup<zero::nccl::Library>{id, rank, devices, stream}, options};
      train(comm);
      comm.close();  // collective; a communicator that is destroyed without it aborts
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
