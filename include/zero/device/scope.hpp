/// @file
/// Makes a device the current one of this thread for as long as an object lives.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

namespace zero::inline ZERO_NAMESPACE::device {

/// The driver's cuDevicePrimaryCtxGetState.
using ContextState = int (*)(int device, unsigned* flags, int* active);

/// The runtime finds the driver's own functions: programs need not link the driver. Null where it
/// does not.
[[nodiscard]] inline ContextState find_context_state() noexcept {
  char const* const name = "cuDevicePrimaryCtxGetState";
  void* found = nullptr;
#if CUDART_VERSION >= 12050
  cudaError_t const status =
      cudaGetDriverEntryPointByVersion(name, &found, 7000, cudaEnableDefault, nullptr);
#else
  cudaError_t const status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, nullptr);
#endif
  ignore(status);
  return status == cudaSuccess ? reinterpret_cast<ContextState>(found) : nullptr;
}

/// Whether this process has initialized a device, which takes some hundred megabytes of it. True
/// also where the driver does not say.
[[nodiscard]] inline bool initialized(int device) noexcept {
  static ContextState const state_of = find_context_state();
  unsigned flags = 0;
  int active = 0;
  return state_of == nullptr || state_of(device, &flags, &active) != 0 || active != 0;
}

/// Selects a device and gives the thread its own back, for callers that must not throw.
///
/// Kernels start only on the device that is current. To demand that it be the right one would make
/// a trainer that drives several devices from one thread fail at run time, and on larger machines
/// only; a trainer cannot tell that it was another for the duration of a call. Where the device is
/// current already, as in a trainer with one of them, none is ever selected.
///
/// A thread that has never chosen a device stands on the first, which selecting it again would
/// initialize for it: with a process for each GPU, all of them would take memory of the first. Such
/// a thread, whose own device this process has not initialized, keeps the one selected here.
class TryScope {
 public:
  /// Selects `device`; `status()` says whether that went well.
  explicit TryScope(int device) noexcept : status_(cudaGetDevice(&before_)) {
    if (status_ != cudaSuccess || before_ == device) return;
    status_ = cudaSetDevice(device);
    changed_ = status_ == cudaSuccess;
  }
  ~TryScope() {
    if (changed_ && initialized(before_)) ignore(cudaSetDevice(before_));
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

/// Selects a device and gives the thread its own back, as TryScope does.
class Scope {
 public:
  /// @throws Error (resource) if there is no such device
  explicit Scope(int device) : scope_(device) { check(scope_.status(), "selecting a device"); }

 private:
  TryScope scope_;
};

}  // namespace zero::inline ZERO_NAMESPACE::device
