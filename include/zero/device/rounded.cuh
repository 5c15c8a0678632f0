/// @file
/// Whether parameters are their master weights, rounded, on a device.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/launch.cuh"
#include "zero/kernel/rounded.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// One block: no atomic operation is a minimum of 64 bits wherever kernels are executed, and this
/// runs when a trainer asks for it.
template <class Parameter, class Master>
ZERO_KERNEL find_unrounded(std::uint64_t* first,
                           Parameter const* parameter,
                           Master const* master,
                           std::size_t count,
                           std::uint64_t place) {
  __shared__ std::size_t of_threads[block_threads];
  std::size_t least = count;
  ZERO_UNROLL(8)
  for (std::size_t i = threadIdx.x; i < count; i += block_threads) {
    if (!kernel::is_rounded(parameter[i], master[i]) && i < least) least = i;
  }
  of_threads[threadIdx.x] = least;
  __syncthreads();
  if (threadIdx.x != 0) return;
  ZERO_UNROLL(1)
  for (std::size_t const other : of_threads) least = other < least ? other : least;
  if (least < count && place + least < *first) *first = place + least;
}

}  // namespace kernels

/// Enqueues kernel::find_unrounded.
template <class Parameter, class Master>
void find_unrounded(Queue const& queue,
                    std::uint64_t* first,
                    Parameter const* parameter,
                    Master const* master,
                    std::size_t count,
                    std::uint64_t place) {
  if (count == 0) return;
  constexpr auto kernel = &kernels::find_unrounded<Parameter, Master>;
  launch(queue, "find_unrounded", 1, block_threads, kernel, first, parameter, master, count, place);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
