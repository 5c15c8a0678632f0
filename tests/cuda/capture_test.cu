// A whole step, captured in a CUDA graph and replayed.
#include "zero/comm/in_process_cuda.hpp"
#include "zero/device/allocators.hpp"
#include "zero/device/status.hpp"
#include "zero/zero.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace {

using zero::device::check;

constexpr std::size_t count = 1 << 14;

/// Gradients of the parameter itself, on the device.
struct Gradient {
  float* to;
  float const* parameter;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < count; ++i) to[i] += parameter[i] - 1.f;
  }
};

/// Trains four steps; with `replay`, steps 3 and 4 are replays of a graph.
std::vector<float> train(bool replay) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  std::vector<float> result(count);
  {
    std::vector<zero::space::Cuda> const spaces{{0, stream}};
    auto group = zero::InProcessCuda::group(spaces);
    zero::ShardedOptimizer optimizer{group[0],
                                     std::vector<zero::Tensor>{{.name = "w", .shape = {count}}},
                                     zero::stage::PosG{},
                                     zero::AdamW{.lr = 0.1f},
                                     zero::Owned{zero::device::MallocAllocator(0)}};
    optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) * 1e-3f;
    });
    auto const step = [&] {
      {
        auto const weights = optimizer.parameters(0);
        auto gradients = optimizer.gradients(0);
        spaces[0].call(Gradient{gradients[0].data(), weights[0].data()});
        optimizer.reduce(std::move(gradients));
      }
      optimizer.enqueue_step({.max_norm = 1.});
    };
    step();
    step();
    if (replay) {
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin");
      step();
      check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
      check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
      check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
      CHECK(optimizer.report().step == 4);
      check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    } else {
      step();
      step();
    }
    auto const weights = optimizer.parameters(0);
    spaces[0].download(result.data(), weights[0].data(), count * sizeof(float));
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return result;
}

TEST_CASE("cuda: a captured step trains as one that was enqueued call by call") {
  std::vector<float> const enqueued = train(false);
  std::vector<float> const replayed = train(true);
  CHECK(enqueued == replayed);
  CHECK(enqueued[0] != 0.f);
}

}  // namespace
