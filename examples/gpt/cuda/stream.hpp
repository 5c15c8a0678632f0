/// @file
/// A rank's own stream.
#pragma once

#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

#include <memory>
#include <type_traits>

namespace gpt {

/// A stream of a device, which waits for no other.
class Stream {
 public:
  explicit Stream(int device) : device_(device) {
    zero::device::Scope const scope(device);
    cudaStream_t stream = nullptr;
    zero::device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    stream_.reset(stream);
  }

  /// The stream's device, and it. Not after the stream is gone.
  [[nodiscard]] zero::space::Cuda space() const { return {device_, stream_.get()}; }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const noexcept {
      zero::device::ignore(cudaStreamDestroy(stream));
    }
  };

  int device_;
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy> stream_;
};

}  // namespace gpt
