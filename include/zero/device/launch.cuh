/// @file
/// Starting kernels: how many threads, and what is checked.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

#if !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "zero: device code needs nvcc's --expt-relaxed-constexpr; link zero::cuda, which adds it"
#endif

/// A kernel of this translation unit. Internal, since two libraries in one program that are built
/// for different devices would else share the stub of one of them, and launch nothing.
#define ZERO_KERNEL static __global__ void __launch_bounds__(zero::device::block_threads)

namespace zero::inline ZERO_NAMESPACE::device {

/// Threads of a block in every kernel that works on arrays.
inline constexpr unsigned block_threads = 256;

/// Threads of a warp.
inline constexpr unsigned warp_threads = 32;

/// This thread's number in the grid, in 64 bits.
[[nodiscard]] inline __device__ std::size_t grid_thread() {
  return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
/// Threads of the grid, in 64 bits.
[[nodiscard]] inline __device__ std::size_t grid_threads() {
  return static_cast<std::size_t>(gridDim.x) * blockDim.x;
}

/// The threads of a grid that work on the same of several groups of work.
struct GridPart {
  unsigned group = 0;       ///< the group's number
  std::size_t thread = 0;   ///< this thread's number among them
  std::size_t threads = 0;  ///< how many there are
};

/// The part of the grid that this thread is in, if there are so many groups.
[[nodiscard]] inline __device__ GridPart grid_part(unsigned groups) {
  if (groups == 1) return {0, grid_thread(), grid_threads()};  // the usual case divides nothing
  unsigned const blocks = gridDim.x / groups;
  return {blockIdx.x / blocks,
          static_cast<std::size_t>(blockIdx.x % blocks) * blockDim.x + threadIdx.x,
          static_cast<std::size_t>(blocks) * blockDim.x};
}

/// Enqueues a kernel on the current device, which is that of the queue, or has it loaded, if that
/// is all the queue does. Calls of the runtime, and no <<<>>>, so that tests can run kernels under
/// a runtime of their own.
///
/// The runtime may load a kernel when it is first used, which allocates and may wait: a launch that
/// is captured in a graph can fail because of it.
/// @return what the runtime says of this launch, or of earlier work in the device
template <class... Parameters, class... Arguments>
[[nodiscard]] cudaError_t try_launch(Queue const& queue,
                                     unsigned blocks,
                                     unsigned threads,
                                     void (*kernel)(Parameters...),
                                     Arguments const&... arguments) noexcept {
  if (queue.loads) {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, kernel);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = queue.stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

/// How many blocks of `block_threads` a multiprocessor of the current device runs at once of a
/// kernel: it depends on the registers that a compiler gave it. Asked of the runtime once per
/// kernel and device, since it takes a microsecond or two; threads that meet may ask once each.
/// @param device  ordinal of the current device
/// @param blocks  is written
/// @return what the runtime says
template <auto kernel>
[[nodiscard]] cudaError_t resident_blocks(int device, int& blocks) noexcept {
  static std::array<std::atomic<int>, 64> answers{};
  auto const index = static_cast<std::size_t>(device);
  std::atomic<int>* const answer = index < answers.size() ? &answers[index] : nullptr;
  if (answer != nullptr) blocks = answer->load(std::memory_order_relaxed);
  if (answer != nullptr && blocks != 0) return cudaSuccess;
  cudaError_t const status =
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, int{block_threads}, 0);
  if (answer != nullptr && status == cudaSuccess) {
    answer->store(blocks, std::memory_order_relaxed);
  }
  return status;
}

/// Enqueues a kernel on the current device, which is that of the queue, in `groups` groups of
/// blocks: as many as `items` pieces of work for each group need with one per thread, and no more
/// than the device runs at once, except for one in each group. Kernels stride over what is left, so
/// that what a block prepares, or adds up at its end, is done once. Blocks have `block_threads`, or
/// fewer where some multiprocessors would else have none.
/// @return as try_launch
template <auto kernel, class... Arguments>
[[nodiscard]] cudaError_t try_launch_groups(Queue const& queue,
                                            unsigned groups,
                                            std::size_t items,
                                            Arguments const&... arguments) noexcept {
  int resident = 0;
  cudaError_t const status = resident_blocks<kernel>(queue.device, resident);
  if (status != cudaSuccess) return status;
  auto const multiprocessors = static_cast<std::size_t>(queue.multiprocessors);
  unsigned threads = block_threads;
  while (threads > warp_threads && items * groups < threads * multiprocessors) threads /= 2;
  std::size_t const needed = items / threads + (items % threads != 0 ? 1 : 0);
  std::size_t const most = multiprocessors * static_cast<std::size_t>(resident);
  std::size_t const blocks = std::max<std::size_t>((std::min)(needed, most / groups), 1);
  return try_launch(queue, groups * static_cast<unsigned>(blocks), threads, kernel, arguments...);
}

/// Enqueues a kernel on the current device, which is that of the queue, in `groups` groups of
/// blocks of `block_threads`, with one block for every `tile` of a group's pieces of work, and at
/// least one. For passes in which a block prepares nothing: the device starts a block where another
/// ends, so that all multiprocessors end together, and streams of a higher priority get room soon.
/// @return as try_launch
template <auto kernel, class... Arguments>
[[nodiscard]] cudaError_t try_launch_tiles(Queue const& queue,
                                           unsigned groups,
                                           std::size_t items,
                                           std::size_t tile,
                                           Arguments const&... arguments) noexcept {
  std::size_t const blocks = items / tile + (items % tile != 0 || items == 0 ? 1 : 0);
  return try_launch(
      queue, groups * static_cast<unsigned>(blocks), block_threads, kernel, arguments...);
}

/// try_launch_groups with one group.
template <auto kernel, class... Arguments>
[[nodiscard]] cudaError_t try_launch_over(Queue const& queue,
                                          std::size_t items,
                                          Arguments const&... arguments) noexcept {
  return try_launch_groups<kernel>(queue, 1, items, arguments...);
}

/// Enqueues a kernel, as try_launch_over does on the current device.
/// @throws Error (resource) if it could not be launched, or if earlier work in the device failed
template <auto kernel, class... Arguments>
void launch_over(Queue const& queue,
                 char const* what,
                 std::size_t items,
                 Arguments const&... arguments) {
  QueueScope const scope(queue);
  check(try_launch_over<kernel>(queue, items, arguments...), what);
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
  QueueScope const scope(queue);
  check(try_launch(queue, blocks, threads, kernel, arguments...), what);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
