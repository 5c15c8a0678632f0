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

/// Vectors that a thread copies, all of which it asks for at once.
inline constexpr unsigned gather_vectors = 4;
/// And those that a block does.
inline constexpr unsigned gather_tile = gather_vectors * block_threads;

/// Not a cub::DeviceMemcpy, which takes temporary memory.
///
/// Every `ranks`-th block of the grid copies from the same rank, so that all of them are read at
/// once; `first` is the rank of the first block, another one on every device that gathers. What all
/// targets get alike is read once.
template <class T, std::size_t width>
ZERO_KERNEL gather_ranks(GatherTargets const targets,
                         BufferList const from,
                         unsigned ranks,
                         unsigned first,
                         std::size_t vectors) {
  unsigned const rank = (first + blockIdx.x % ranks) % ranks;
  std::size_t const tile = static_cast<std::size_t>(blockIdx.x / ranks) * gather_tile;
  auto const at = [&](unsigned v) { return tile + v * block_threads + threadIdx.x; };
  Vector<T, width> loaded[gather_vectors];
  ZERO_UNROLL(1)
  for (int i = 0; i < targets.count; ++i) {
    T const* const source = from.of<T>(static_cast<int>(rank)) + targets.skip[i] / sizeof(T);
    T* const target = static_cast<T*>(targets.at[i]) + rank * vectors * width;
    if (i == 0 || targets.skip[i] != targets.skip[i - 1]) {
      ZERO_UNROLL(gather_vectors)
      for (unsigned v = 0; v < gather_vectors; ++v) {
        if (at(v) < vectors) loaded[v] = load<width>(source, at(v) * width);
      }
    }
    if (source == target) continue;
    ZERO_UNROLL(gather_vectors)
    for (unsigned v = 0; v < gather_vectors; ++v) {
      if (at(v) < vectors) store<width>(target, at(v) * width, loaded[v]);
    }
  }
}

}  // namespace kernels

namespace detail {

template <class T, std::size_t width>
[[nodiscard]] cudaError_t gather_vectors(Queue const& queue,
                                         GatherTargets const& targets,
                                         BufferList const& from,
                                         int ranks,
                                         int first,
                                         std::size_t bytes) {
  std::size_t const vectors = bytes / (sizeof(T) * width);
  return try_launch_tiles<kernels::gather_ranks<T, width>>(queue,
                                                           static_cast<unsigned>(ranks),
                                                           vectors,
                                                           kernels::gather_tile,
                                                           targets,
                                                           from,
                                                           static_cast<unsigned>(ranks),
                                                           static_cast<unsigned>(first),
                                                           vectors);
}

}  // namespace detail

/// Enqueues a copy of `bytes` bytes from each of `ranks` buffers, behind what a target skips, to
/// one after the other at each target. Begins at rank `first`. A buffer may be where it is copied
/// to, and is then left alone. For callers that have made the queue's device current; never throws.
/// @par Cost  one launch; in accesses of 16 bytes where everything is aligned to them. Targets that
///            skip as many bytes as the one before them read nothing
[[nodiscard]] inline cudaError_t try_gather_ranks(Queue const& queue,
                                                  GatherTargets const& targets,
                                                  BufferList const& from,
                                                  int ranks,
                                                  int first,
                                                  std::size_t bytes) {
  if (bytes == 0) return cudaSuccess;
  std::uintptr_t together = bytes;
  for (int i = 0; i < targets.count; ++i) {
    together |= reinterpret_cast<std::uintptr_t>(targets.at[i]) | targets.skip[i];
  }
  for (int rank = 0; rank < ranks; ++rank) {
    together |= reinterpret_cast<std::uintptr_t>(from.at[rank]);
  }
  if (together % access_bytes == 0) {
    return detail::gather_vectors<unsigned, 4>(queue, targets, from, ranks, first, bytes);
  }
  if (together % sizeof(unsigned) == 0) {
    return detail::gather_vectors<unsigned, 1>(queue, targets, from, ranks, first, bytes);
  }
  return detail::gather_vectors<unsigned char, 1>(queue, targets, from, ranks, first, bytes);
}

/// Has all kernels loaded that `try_gather_ranks` may launch, as try_load_sums does.
[[nodiscard]] inline cudaError_t try_load_gathers(Queue queue) {
  queue.loads = true;
  for (std::size_t const bytes : {access_bytes, sizeof(unsigned), sizeof(char)}) {
    cudaError_t const status = try_gather_ranks(queue, {}, {}, 1, 0, bytes);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace zero::inline ZERO_NAMESPACE::device
