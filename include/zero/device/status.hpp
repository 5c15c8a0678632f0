/// @file
/// What the CUDA runtime answers, as the library's errors.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <cuda_runtime_api.h>

namespace zero::inline ZERO_NAMESPACE::device {

/// Turns a refusal of the runtime into an error that names the call and the reason.
///
/// The runtime reports failures of earlier, asynchronous work at whatever call comes next; `what`
/// says which call that was, not which work failed.
/// @throws Error (resource)
inline void check(cudaError_t status, char const* what) {
  if (status == cudaSuccess) [[likely]] {
    return;
  }
  // Else the runtime would report the same failure to the next caller that asks for the last one.
  static_cast<void>(cudaGetLastError());
  fail(ErrorKind::resource,
       {what, " failed: ", cudaGetErrorName(status), ", ", cudaGetErrorString(status)});
}

/// For calls whose failure nobody can act upon, such as giving something back: nor is it left for
/// the next caller that asks the runtime for its last error.
inline void ignore(cudaError_t status) noexcept {
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace zero::inline ZERO_NAMESPACE::device
