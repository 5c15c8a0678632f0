// A whole step over threads as ranks, captured in a CUDA graph and replayed.
#include "cuda/captured_step.cuh"
#include "zero/comm/in_process_cuda.hpp"

#include <vector>

namespace {

std::vector<float> train(bool replay) {
  using zero::device::check;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  std::vector<float> result;
  {
    auto group = zero::InProcessCuda::group(std::vector<zero::space::Cuda>{{0, stream}});
    result = captured_step::train(group[0], replay);
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
