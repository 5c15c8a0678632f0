/// @file
/// How much of a device's memory is in use, by the device's own count.
#pragma once

#include "device_memory.hpp"
#include "products.hpp"
#include "result.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpt {

/// Measures what a run takes of the device that rank 0 is on: from before anything is allocated,
/// but for what the runtime and cuBLAS take for themselves, until after the first step.
class WatchedDevice {
 public:
  explicit WatchedDevice(zero::space::Cuda const& space)
      : device_(space.device()), products_(space, nullptr), before_(free_bytes()) {}

  /// `show`, and the measurement beside it.
  [[nodiscard]] ShowProgress watching(ShowProgress const& show) {
    return [this, show](Progress const& at) {
      if (at.note.empty() && taken_ == 0) taken_ = before_ - free_bytes();
      if (show) show(at);
    };
  }
  [[nodiscard]] StageResult result(StageResult of) const {
    of.device_bytes = taken_;
    return of;
  }

 private:
  [[nodiscard]] std::uint64_t free_bytes() const {
    zero::device::Scope const scope(device_);
    std::size_t free = 0;
    std::size_t all = 0;
    zero::device::check(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    return free;
  }

  int device_;
  Products products_;  // holds cuBLAS's own memory
  std::uint64_t before_;
  std::uint64_t taken_ = 0;
};

}  // namespace gpt
