/// @file
/// The hash of an array on a device: the host's bits.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/launch.cuh"
#include "zero/kernel/element_hash.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Not CUB's reduction: integers may be added in any order, and this runs once in a training.
template <class T>
ZERO_KERNEL add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) {
  std::uint64_t sum = 0;
  for (std::size_t i = grid_thread(); i < count; i += grid_threads()) {
    sum += kernel::element_hash(x[i], first + i);
  }
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(hash), static_cast<unsigned long long>(sum));
}

}  // namespace kernels

/// Enqueues hash += the hashes of x[i] at place first + i.
template <class T>
void add_hash(
    Queue const& queue, std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) {
  if (count == 0) return;
  launch_over<kernels::add_hash<T>>(queue, "add_hash", count, hash, x, count, first);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
