/// @file
/// Calls that have nothing to do with what is being captured.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

namespace zero::inline ZERO_NAMESPACE::device {

/// Lets this thread ask for events and streams outside of a capture, for as long as an object
/// lives.
///
/// While a stream is being captured in the default mode, the runtime refuses such questions of any
/// thread, even if they are about other work, and invalidates the capture.
class OutsideCapture {
 public:
  OutsideCapture() noexcept : exchanged_(exchange()) {}
  ~OutsideCapture() {
    if (exchanged_) exchange();
  }
  OutsideCapture(OutsideCapture const&) = delete;
  OutsideCapture& operator=(OutsideCapture const&) = delete;

 private:
  bool exchange() noexcept {
    cudaError_t const status = cudaThreadExchangeStreamCaptureMode(&mode_);
    ignore(status);
    return status == cudaSuccess;
  }

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool exchanged_;
};

}  // namespace zero::inline ZERO_NAMESPACE::device
