/// @file
/// A whole step, captured in a CUDA graph and replayed.
#pragma once

#include "zero/device/allocators.hpp"
#include "zero/device/status.hpp"
#include "zero/zero.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace captured_step {

inline constexpr std::size_t count = 1 << 14;

/// Gradients of the parameter itself, on the device.
struct Gradient {
  float* to;
  float const* parameter;
  __host__ __device__ void operator()() const {
    for (std::size_t i = 0; i < count; ++i) to[i] += parameter[i] - 1.f;
  }
};

/// Trains four steps on the stream of the communicator's space; with `replay`, steps 3 and 4 are
/// replays of a graph. Returns the parameters.
template <class C>
std::vector<float> train(C& comm, bool replay) {
  using zero::device::check;
  auto const space = comm.space();
  cudaStream_t const stream = space.stream();
  zero::ShardedOptimizer optimizer{comm,
                                   std::vector<zero::Tensor>{{.name = "w", .shape = {count}}},
                                   zero::stage::PosG{},
                                   zero::AdamW{.lr = 0.1f},
                                   zero::Owned{zero::device::MallocAllocator(space.device())}};
  optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) * 1e-3f;
  });
  auto const step = [&] {
    {
      auto const weights = optimizer.parameters(0);
      auto gradients = optimizer.gradients(0);
      space.call(Gradient{gradients[0].data(), weights[0].data()});
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
  std::vector<float> result(count);
  space.download(result.data(), weights[0].data(), count * sizeof(float));
  return result;
}

}  // namespace captured_step
