// For programs that will find no GPU, where there is no nvcc either.
#include "zero/comm/nccl.hpp"

template <>
zero::nccl::Status zero::nccl::Kernels<>::sum(RankSum const&, int, cudaStream_t) {
  return {Result::invalid_usage, "built without nvcc"};
}
