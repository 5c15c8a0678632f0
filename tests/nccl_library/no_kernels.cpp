// For programs that will find no GPU, where there is no nvcc either.
#include "zero/comm/nccl.hpp"

template <class T>
zero::nccl::Status zero::nccl::Kernels<T>::sum(RankSum const& /*sum*/,
                                               int /*device*/,
                                               cudaStream_t /*stream*/) {
  return {Result::invalid_usage, "built without nvcc"};
}

template struct zero::nccl::Kernels<>;
