/// @file
/// Makes a device the current one of this thread for as long as an object lives.
#pragma once

#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

namespace zero::inline v0_1::device {

/// Selects a device and gives the thread its own back, for callers that must not throw.
///
/// Kernels start only on the device that is current. To demand that it be the right one would make
/// a trainer that drives several devices from one thread fail at run time, and on larger machines
/// only; a trainer cannot tell that it was another for the duration of a call. Where the device is
/// current already, as in a trainer with one of them, none is ever selected.
class TryScope {
 public:
  /// Selects `device`; `status()` says whether that went well.
  explicit TryScope(int device) noexcept : status_(cudaGetDevice(&before_)) {
    if (status_ != cudaSuccess || before_ == device) return;
    status_ = cudaSetDevice(device);
    changed_ = status_ == cudaSuccess;
  }
  ~TryScope() {
    if (changed_) ignore(cudaSetDevice(before_));
  }
  TryScope(TryScope const&) = delete;
  TryScope& operator=(TryScope const&) = delete;

  /// What the runtime said.
  [[nodiscard]] cudaError_t status() const noexcept { return status_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t status_;
};

/// Selects a device and gives the thread its own back.
class Scope {
 public:
  /// @throws Error (resource) if there is no such device
  explicit Scope(int device) : scope_(device) { check(scope_.status(), "selecting a device"); }

 private:
  TryScope scope_;
};

}  // namespace zero::inline v0_1::device
