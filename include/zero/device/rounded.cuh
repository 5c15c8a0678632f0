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

template <class Parameter, class Master>
ZERO_KERNEL find_unrounded(std::uint64_t* first,
                           Parameter const* parameter,
                           Master const* master,
                           std::size_t count,
                           std::uint64_t place) {
  for (std::size_t i = grid_thread(); i < count; i += grid_threads()) {
    if (kernel::is_rounded(parameter[i], master[i])) continue;
    static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
    atomicMin(reinterpret_cast<unsigned long long*>(first),
              static_cast<unsigned long long>(place + i));
    return;
  }
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
  launch_over<kernels::find_unrounded<Parameter, Master>>(
      queue, "find_unrounded", count, first, parameter, master, count, place);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
