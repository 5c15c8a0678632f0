/// @file
/// A function object, run once on a device.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/launch.cuh"

#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

template <class F>
// Read where the launch has put it: a copy would be memory set aside for every thread there can be.
ZERO_KERNEL call(__grid_constant__ F const function) {
  function();
}

}  // namespace kernels

/// Enqueues function(), on one thread.
template <class F>
void call(Queue const& queue, F const& function) {
  static_assert(std::is_trivially_copyable_v<F>, "zero: a device gets function objects as bytes");
  launch(queue, "call", 1, 1, kernels::call<F>, function);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
