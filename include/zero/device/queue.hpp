/// @file
/// Where kernels are launched.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/device/turns.hpp"

#include <cuda_runtime_api.h>

#include <memory>

namespace zero::inline ZERO_NAMESPACE::device {

/// A stream of a device. A value; it owns neither.
struct Queue {
  int device = 0;                  ///< ordinal of the device that the stream belongs to
  cudaStream_t stream = nullptr;   ///< the caller's; null is the device's default stream
  int multiprocessors = 1;         ///< of the device: how much work fills it
  bool loads = false;              ///< launches only have their kernels loaded
  std::shared_ptr<Turns> turns{};  ///< of threads whose streams are captured together; null: none
};

/// Makes a stream for communication on the current device. It does not wait for the legacy default
/// stream, and has the highest priority: what peers wait for comes before kernels that leave the
/// device no room.
/// @return what the runtime says
[[nodiscard]] inline cudaError_t create_communication_stream(cudaStream_t* stream) noexcept {
  int lowest = 0;
  int highest = 0;
  cudaError_t const status = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  if (status != cudaSuccess) return status;
  return cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, highest);
}

/// What a call that enqueues holds: the queue's device is the thread's current one, and it is the
/// thread's turn.
class QueueScope {
 public:
  /// @throws Error (resource) if there is no such device
  explicit QueueScope(Queue const& queue)
      : turn_(queue.turns == nullptr ? Turns::Turn() : queue.turns->take()), scope_(queue.device) {}

 private:
  Turns::Turn turn_;
  Scope scope_;
};

/// The queue of a stream.
/// @throws Error (resource) if there is no such device, or no driver for it
[[nodiscard]] inline Queue queue_of(int device, cudaStream_t stream) {
  Queue queue{.device = device, .stream = stream};
  check(cudaDeviceGetAttribute(&queue.multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return queue;
}

/// A wait of the host for a queue, made before what is waited for is enqueued: a runtime that
/// refuses it then leaves nothing under way in memory of the caller's.
class Wait {
 public:
  /// @throws Error (resource) if the runtime refuses
  explicit Wait(Queue const& queue) : queue_(queue) {
    Scope const scope(queue_.device);
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreateWithFlags");
  }
  Wait(Wait const&) = delete;
  Wait& operator=(Wait const&) = delete;
  ~Wait() {
    TryScope const scope(queue_.device);
    ignore(cudaEventDestroy(event_));
  }

  /// Blocks this thread, which sleeps, until all work in the queue so far is done. Waits for an
  /// event in this one stream, never for the device.
  /// @throws Error (resource) if that work or the wait failed
  void now() const {
    // A null stream is that of the current device.
    Scope const scope(queue_.device);
    check(cudaEventRecord(event_, queue_.stream), "cudaEventRecord");
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

 private:
  Queue queue_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace zero::inline ZERO_NAMESPACE::device
