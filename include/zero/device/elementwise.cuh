/// @file
/// Conversions and additions between element types, array by array, through CUB.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/element.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"

#include <cub/device/device_transform.cuh>

#include <cstddef>

#if CUB_VERSION < 200800
#error "zero: device code needs CUDA 12.9 or newer, or its CUB"
#endif

namespace zero::inline ZERO_NAMESPACE::device {

/// Enqueues out[i] = f(in[i]...), where `out` may be one of the inputs.
/// @par Cost  one pass, aligned or not; allocates nothing. CUB before CUDA 13.1 keeps the tile that
///            suits the first array it meets, slow on Hopper and later if that one is tiny.
template <class F, class Out, class... In>
void transform(Queue const& queue,
               char const* what,
               F const& f,
               std::size_t count,
               Out* out,
               In const*... in) {
  QueueScope const scope(queue);
  // CUB takes the runtime's last error for its own, whoever left it, and clears it either way.
  static_cast<void>(cudaGetLastError());
  check(cub::DeviceTransform::Transform(cuda::std::make_tuple(in...), out, count, f, queue.stream),
        what);
}

/// Enqueues out[i] = To(in[i]), rounded to nearest even, as kernel::convert does, but for
/// which NaN it is.
template <class To, class From>
void convert(Queue const& queue, To* out, From const* in, std::size_t count) {
  transform(queue, "convert", Convert<To, From>{}, count, out, in);
}

/// Enqueues out[i] = Sum(out[i] + in[i]), rounded once, as kernel::add does, but for
/// which NaN it is.
template <class Sum, class From>
void add(Queue const& queue, Sum* out, From const* in, std::size_t count) {
  transform(queue, "add", Add<Sum, From>{}, count, out, out, in);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
