/// @file
/// Where kernels are launched.
#pragma once

#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

namespace zero::inline v0_1::device {

/// A stream of a device. A value; it owns nothing.
struct Queue {
  int device = 0;                 ///< ordinal of the device that the stream belongs to
  cudaStream_t stream = nullptr;  ///< the caller's; null is the device's default stream
  int multiprocessors = 1;        ///< of the device: how much work fills it
};

/// The queue of a stream.
/// @throws Error (resource) if there is no such device, or no driver for it
[[nodiscard]] inline Queue queue_of(int device, cudaStream_t stream) {
  Queue queue{.device = device, .stream = stream};
  check(cudaDeviceGetAttribute(&queue.multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return queue;
}

/// Blocks this thread, which sleeps, until all work in the queue so far is done. Waits for an event
/// in this one stream, never for the device.
/// @throws Error (resource) if that work or the wait failed
inline void wait_for(Queue const& queue) {
  struct Event {
    cudaEvent_t handle = nullptr;
    ~Event() {
      if (handle != nullptr) static_cast<void>(cudaEventDestroy(handle));
    }
  };
  Scope const scope(queue.device);
  Event event;
  check(cudaEventCreateWithFlags(&event.handle, cudaEventDisableTiming | cudaEventBlockingSync),
        "cudaEventCreateWithFlags");
  check(cudaEventRecord(event.handle, queue.stream), "cudaEventRecord");
  check(cudaEventSynchronize(event.handle), "cudaEventSynchronize");
}

}  // namespace zero::inline v0_1::device
