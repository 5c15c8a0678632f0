/// @file
/// Blocks of all ranks on a device: one kernel that reads all ranks' buffers.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/buffers.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/vector.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Not a cub::DeviceMemcpy, which takes temporary memory.
///
/// Every `ranks`-th block of the grid copies from the same rank, so that all of them are read at
/// once; `first` is the rank of the first block, another one on every rank that gathers.
template <class T, std::size_t width>
ZERO_KERNEL gather_ranks(
    T* const to, BufferList const from, unsigned ranks, unsigned first, std::size_t vectors) {
  unsigned const rank = (first + blockIdx.x % ranks) % ranks;
  T const* const source = from.of<T>(static_cast<int>(rank));
  T* const target = to + rank * vectors * width;
  if (source == target) return;
  std::size_t const threads = static_cast<std::size_t>(gridDim.x / ranks) * blockDim.x;
  std::size_t const thread =
      static_cast<std::size_t>(blockIdx.x / ranks) * blockDim.x + threadIdx.x;
  for (std::size_t i = thread; i < vectors; i += threads) {
    store<width>(target, i * width, load<width>(source, i * width));
  }
}

}  // namespace kernels

namespace detail {

template <class T, std::size_t width>
[[nodiscard]] cudaError_t gather_vectors(
    Queue const& queue, void* to, BufferList const& from, int ranks, int first, std::size_t bytes) {
  std::size_t const vectors = bytes / (sizeof(T) * width);
  return try_launch_groups<kernels::gather_ranks<T, width>>(queue,
                                                            static_cast<unsigned>(ranks),
                                                            vectors,
                                                            static_cast<T*>(to),
                                                            from,
                                                            static_cast<unsigned>(ranks),
                                                            static_cast<unsigned>(first),
                                                            vectors);
}

}  // namespace detail

/// Enqueues a copy of `bytes` bytes from each of `ranks` buffers, to one after the other at `to`.
/// Begins at rank `first`. A buffer may be where it is copied to, and is then left alone. For
/// callers that have made the queue's device current; never throws.
/// @par Cost  one launch; in accesses of 16 bytes where everything is aligned to them
[[nodiscard]] inline cudaError_t try_gather_ranks(
    Queue const& queue, void* to, BufferList const& from, int ranks, int first, std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  std::uintptr_t together = reinterpret_cast<std::uintptr_t>(to) | bytes;
  for (int rank = 0; rank < ranks; ++rank) {
    together |= reinterpret_cast<std::uintptr_t>(from.at[rank]);
  }
  if (together % access_bytes == 0) {
    return detail::gather_vectors<unsigned, 4>(queue, to, from, ranks, first, bytes);
  }
  if (together % sizeof(unsigned) == 0) {
    return detail::gather_vectors<unsigned, 1>(queue, to, from, ranks, first, bytes);
  }
  return detail::gather_vectors<unsigned char, 1>(queue, to, from, ranks, first, bytes);
}

/// Has all kernels loaded that `try_gather_ranks` may launch, as try_load_sums does.
[[nodiscard]] inline cudaError_t try_load_gathers(Queue queue) {
  queue.loads = true;
  for (std::size_t const bytes : {access_bytes, sizeof(unsigned), sizeof(char)}) {
    cudaError_t const status = try_gather_ranks(queue, nullptr, {}, 1, 0, bytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace zero::inline ZERO_NAMESPACE::device
