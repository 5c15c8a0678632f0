/// @file
/// Kernels as functions of the host: the words, variables and functions of CUDA C++ that ours use.
#pragma once

#include "cuda_runtime_api.h"
#include "emulated/grid.hpp"

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

struct cudaLaunchConfig_t {
  dim3 gridDim;
  dim3 blockDim;
  std::size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace emulated {

/// Checks a launch as the runtime does, and enqueues it.
/// @param kernel  which one, so that it is known to be loaded from then on; null: nobody asks
cudaError_t launch(cudaLaunchConfig_t const& config,
                   std::function<void()> thread,
                   void const* kernel = nullptr);

/// Loads a kernel for the current device.
cudaError_t load(void const* kernel);

/// How many blocks of any kernel a multiprocessor of an emulated device runs at once.
inline constexpr int resident_blocks = 3;

cudaError_t occupancy(int* blocks);

}  // namespace emulated

template <class Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          Kernel /*kernel*/,
                                                          int /*threads*/,
                                                          std::size_t /*shared_bytes*/) {
  return emulated::occupancy(blocks);
}

struct cudaFuncAttributes {
  int numRegs;
};

template <class... Parameters>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, void (*kernel)(Parameters...)) {
  *attributes = {};
  return emulated::load(reinterpret_cast<void const*>(kernel));
}

/// Parameters are copied now, and for every thread again: none sees what another does to them.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(cudaLaunchConfig_t const* config,
                               void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  using Copies = std::tuple<Parameters...>;
  static_assert((std::is_trivially_copyable_v<Parameters> && ...));
  static_assert(sizeof(Copies) <= 4096, "a kernel's parameters have 4 KB");
  return emulated::launch(
      *config,
      [kernel, copies = Copies(std::forward<Arguments>(arguments)...)] {
        std::apply(kernel, copies);
      },
      reinterpret_cast<void const*>(kernel));
}
