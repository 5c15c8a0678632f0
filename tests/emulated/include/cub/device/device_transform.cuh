/// @file
/// What device/elementwise.cuh asks of CUB, on one thread of an emulated device: a stand-in for the
/// toolkit's header of this name.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>

#define CUB_VERSION 200800

namespace cuda::std {
using ::std::make_tuple;
using ::std::tuple;
}  // namespace cuda::std

namespace cub {

struct DeviceTransform {
  template <class... In, class Out, class F>
  static cudaError_t Transform(
      cuda::std::tuple<In...> in, Out out, std::size_t count, F f, cudaStream_t stream) {
    if (count == 0) return cudaSuccess;
    // As CUB does, whoever left it behind.
    cudaError_t const before = cudaGetLastError();
    if (before != cudaSuccess) return before;
    cudaLaunchConfig_t config{};
    config.stream = stream;
    static constexpr char name = 0;
    return emulated::launch(
        config,
        [=] {
          // The last first: nobody may rely on an order.
          for (std::size_t i = count; i-- != 0;) {
            out[i] = std::apply([&](auto... from) { return f(from[i]...); }, in);
          }
        },
        &name);
  }
};

}  // namespace cub
