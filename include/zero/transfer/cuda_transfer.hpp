/// @file
/// Transfers between a device's memory and pinned memory of the host, on a stream of their own.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/transfer.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

/// The slower memory is pinned memory of the host. Transfers run on a second stream, beside the
/// work of the space's stream; events order the two, and the host never waits but in `settle`.
class CudaTransfer {
 public:
  using Space = space::Cuda;                          ///< the fast memory, and its stream
  using Slow = std::byte*;                            ///< pinned memory of the host
  static constexpr std::string_view name = "pinned";  ///< of the slower memory, for people
  /// How many transfers were started until then; 0 is done.
  struct Ticket {
    std::uint64_t number = 0;  ///< counted from 1
  };

  /// Makes a stream and some events on the space's device.
  /// @throws Error (resource) if the runtime refuses
  explicit CudaTransfer(space::Cuda const& space) : space_(space) {
    device::Scope const scope(space_.device());
    cudaStream_t stream = nullptr;
    device::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    stream_.reset(stream);
    make(ready_);
    for (Event& event : done_) make(event);
  }
  CudaTransfer(CudaTransfer const&) = delete;
  CudaTransfer& operator=(CudaTransfer const&) = delete;
  /// Blocks until nothing is under way.
  ~CudaTransfer() { settle(); }

  /// Pinned memory.
  /// @throws Error (resource) if the runtime refuses
  [[nodiscard]] Slow allocate(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    device::Scope const scope(space_.device());
    void* memory = nullptr;
    device::check(cudaHostAlloc(&memory, bytes, 0), "cudaHostAlloc of the slower memory");
    return static_cast<Slow>(memory);
  }
  /// Back to the runtime.
  void deallocate(Slow memory, std::size_t /*bytes*/) noexcept {
    if (memory == nullptr) return;
    device::TryScope const scope(space_.device());
    device::ignore(cudaFreeHost(memory));
  }
  /// Enqueues a copy, behind all that is in the space's stream now.
  /// @throws Error (resource) if the runtime refuses
  Ticket send_out(Slow to, void const* from, std::size_t bytes) {
    return start(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  /// Enqueues a copy, behind all that is in the space's stream now.
  /// @throws Error (resource) if the runtime refuses
  Ticket bring_in(void* to, Slow from, std::size_t bytes) {
    return start(to, from, bytes, cudaMemcpyHostToDevice);
  }
  /// Lets the space's stream wait for a transfer; returns at once.
  /// @throws Error (resource) if the runtime refuses
  void wait(Ticket const& ticket) {
    if (ticket.number == 0) return;
    device::QueueScope const scope(space_.queue());
    // An event that has been recorded anew stands for a later transfer: longer, never too short.
    device::check(cudaStreamWaitEvent(space_.stream(), event_of(ticket.number), 0),
                  "cudaStreamWaitEvent");
  }
  /// Blocks this thread until nothing is under way.
  void settle() noexcept {
    device::TryScope const scope(space_.device());
    device::ignore(cudaStreamSynchronize(stream_.get()));
  }

 private:
  struct Destroy {
    void operator()(cudaStream_t stream) const noexcept {
      device::ignore(cudaStreamDestroy(stream));
    }
    void operator()(cudaEvent_t event) const noexcept { device::ignore(cudaEventDestroy(event)); }
  };
  using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy>;
  using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

  static void make(Event& event) {
    cudaEvent_t made = nullptr;
    device::check(cudaEventCreateWithFlags(&made, cudaEventDisableTiming),
                  "cudaEventCreateWithFlags");
    event.reset(made);
  }
  [[nodiscard]] cudaEvent_t event_of(std::uint64_t number) const noexcept {
    return done_[number % done_.size()].get();
  }

  Ticket start(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return {};
    device::QueueScope const scope(space_.queue());
    device::check(cudaEventRecord(ready_.get(), space_.stream()), "cudaEventRecord");
    device::check(cudaStreamWaitEvent(stream_.get(), ready_.get(), 0), "cudaStreamWaitEvent");
    device::check(cudaMemcpyAsync(to, from, bytes, kind, stream_.get()), "cudaMemcpyAsync");
    device::check(cudaEventRecord(event_of(started_ + 1), stream_.get()), "cudaEventRecord");
    return {++started_};
  }

  space::Cuda space_;
  Stream stream_;
  Event ready_;                 ///< what is in the space's stream
  std::array<Event, 16> done_;  ///< of the last transfers
  std::uint64_t started_ = 0;
};

static_assert(Transfer<CudaTransfer>);

}  // namespace zero::inline ZERO_NAMESPACE
