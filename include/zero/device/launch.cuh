/// @file
/// Starting kernels: how many threads, and what is checked.
#pragma once

#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#if !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "zero: device code needs nvcc's --expt-relaxed-constexpr; link zero::cuda, which adds it"
#endif

/// A kernel of this translation unit. Internal, since two libraries in one program that are built
/// for different devices would else share the stub of one of them, and launch nothing.
#define ZERO_KERNEL static __global__ void __launch_bounds__(zero::device::block_threads)

namespace zero::inline v0_1::device {

/// Threads of a block in every kernel that works on arrays.
inline constexpr unsigned block_threads = 256;

/// Blocks of that size which fill a multiprocessor of any device since sm_80.
inline constexpr unsigned blocks_per_multiprocessor = 8;

/// Blocks for `items` pieces of work, one per thread while the device can hold so many: kernels
/// stride over what is left, so that what a block prepares is prepared once.
[[nodiscard]] inline unsigned blocks_for(Queue const& queue, std::size_t items) noexcept {
  std::size_t const needed = items / block_threads + (items % block_threads != 0 ? 1 : 0);
  std::size_t const resident =
      static_cast<std::size_t>(queue.multiprocessors) * blocks_per_multiprocessor;
  return static_cast<unsigned>(std::clamp<std::size_t>(needed, 1, resident));
}

/// This thread's number in the grid, in 64 bits.
[[nodiscard]] inline __device__ std::size_t grid_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
/// Threads of the grid, in 64 bits.
[[nodiscard]] inline __device__ std::size_t grid_threads() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}

/// Enqueues a kernel on the current device, which is that of the queue. A call of the runtime, and
/// no <<<>>>, so that tests can run kernels under a runtime of their own.
/// @return what the runtime says of this launch, or of earlier work in the device
template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t try_launch(Queue const& queue,
                                     unsigned blocks,
                                     unsigned threads,
                                     void (*kernel)(Parameters...),
                                     Arguments const&... arguments) noexcept {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = queue.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// Enqueues a kernel.
/// @throws Error (resource) if it could not be launched, or if earlier work in the device failed
template <class... Parameters, class... Arguments>
void launch(Queue const& queue,
            char const* what,
            unsigned blocks,
            unsigned threads,
            void (*kernel)(Parameters...),
            Arguments const&... arguments) {
  Scope const scope(queue.device);
  check(try_launch(queue, blocks, threads, kernel, arguments...), what);
}

}  // namespace zero::inline v0_1::device
