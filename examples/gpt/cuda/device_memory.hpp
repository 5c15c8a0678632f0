/// @file
/// What a model on a device holds beside kernels: memory, and points in its stream.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory_resource>

namespace gpt {

/// One piece of a device's memory, cut into arrays that begin at multiples of 256 bytes. One piece,
/// because the runtime rounds each up to its own pages.
class DeviceArrays {
 public:
  /// @param lay_out  calls array<T>(count) for each array, always alike; is called twice
  /// @param memory   of the device; must outlive this
  template <class LayOut>
  DeviceArrays(LayOut const& lay_out, std::pmr::memory_resource* memory) : memory_(memory) {
    lay_out(*this);
    bytes_ = used_;
    begin_ = static_cast<std::byte*>(memory_->allocate(bytes_, alignment));
    used_ = 0;
    lay_out(*this);
  }
  DeviceArrays(DeviceArrays const&) = delete;
  DeviceArrays& operator=(DeviceArrays const&) = delete;
  ~DeviceArrays() { memory_->deallocate(begin_, bytes_, alignment); }

  /// The next array: null while bytes are only counted.
  template <class T>
  [[nodiscard]] T* array(std::size_t count) {
    std::size_t const at = used_;
    used_ += zero::round_up(count * sizeof(T), alignment);
    return begin_ == nullptr ? nullptr : reinterpret_cast<T*>(begin_ + at);
  }

 private:
  static constexpr std::size_t alignment = 256;

  std::pmr::memory_resource* memory_;
  std::byte* begin_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t used_ = 0;
};

/// Memory of the host from which a device copies without the host's waiting.
class PinnedBytes {
 public:
  explicit PinnedBytes(std::size_t count) {
    void* memory = nullptr;
    zero::device::check(cudaHostAlloc(&memory, count, cudaHostAllocMapped), "cudaHostAlloc");
    bytes_ = static_cast<std::uint8_t*>(memory);
  }
  PinnedBytes(PinnedBytes const&) = delete;
  PinnedBytes& operator=(PinnedBytes const&) = delete;
  ~PinnedBytes() { zero::device::ignore(cudaFreeHost(bytes_)); }

  [[nodiscard]] std::uint8_t* data() const noexcept { return bytes_; }

 private:
  std::uint8_t* bytes_ = nullptr;
};

/// A point in a stream of the current device.
class Event {
 public:
  explicit Event(zero::device::Queue const& queue) : device_(queue.device) {
    zero::device::Scope const scope(device_);
    zero::device::check(cudaEventCreate(&event_), "cudaEventCreate");
  }
  Event(Event const&) = delete;
  Event& operator=(Event const&) = delete;
  ~Event() { zero::device::ignore(cudaEventDestroy(event_)); }

  /// Puts it behind all that is in the stream now.
  void record(cudaStream_t stream) const {
    zero::device::Scope const scope(device_);
    zero::device::check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  /// Blocks the host until the stream has come to where it was recorded last.
  void wait() const { zero::device::check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  /// Seconds from another one of the same stream, both of which the stream has come to.
  [[nodiscard]] double seconds_since(Event const& begin) const {
    float milliseconds = 0.f;
    zero::device::check(cudaEventElapsedTime(&milliseconds, begin.event_, event_),
                        "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1000;
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace gpt
