/// @file
/// Device memory, worked on in the order of a CUDA stream.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/queue.hpp"
#include "zero/device/scope.hpp"
#include "zero/device/status.hpp"
#include "zero/device/turns.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::space {

/// Memory of one device, and the trainer's stream, in which all work on it is enqueued.
///
/// Every function enqueues and returns; `upload` and `download` alone wait, and sleep, for an event
/// of this stream. The device is never synchronised, memory never allocated, and the thread's
/// current device is after every call what it was before; a thread that has never chosen one may be
/// left on that of the space (see device::TryScope). So a step can be captured in a CUDA graph.
///
/// The class compiles wherever the runtime's header is; a translation unit that asks for kernels
/// (`convert`, `add`, `add_squares`, `call`, `update`, `measure`), as one that makes an optimizer
/// does, is compiled by nvcc; other compilers refuse it in a sentence.
/// @par Errors  Error (resource) where the runtime refuses, also for work that failed before
class Cuda {
 public:
  static constexpr std::string_view name = "CUDA";  ///< of the space, for people
  static constexpr bool host_accessible = false;    ///< pointers are of the device

  /// Work goes to `stream`, which belongs to the device with that ordinal. Both are the trainer's
  /// and outlive the space and its copies.
  /// @throws Error (resource) if there is no such device, or no driver for it
  Cuda(int device, cudaStream_t stream) : queue_(device::queue_of(device, stream)) {}

  /// Ordinal of the device.
  [[nodiscard]] int device() const noexcept { return queue_.device; }
  /// Where all work is enqueued.
  [[nodiscard]] cudaStream_t stream() const noexcept { return queue_.stream; }
  /// Both, and the size of the device.
  [[nodiscard]] device::Queue const& queue() const noexcept { return queue_; }

  /// The same, whose calls take turns with all that have these `turns` while streams are captured
  /// together.
  [[nodiscard]] Cuda taking(std::shared_ptr<device::Turns> turns) const {
    Cuda result(*this);
    result.queue_.turns = std::move(turns);
    return result;
  }

  /// Does the stream's work go to a graph that is being captured, to be done whenever it is
  /// launched?
  [[nodiscard]] bool capturing() const {
    device::QueueScope const scope(queue_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    device::check(cudaStreamIsCapturing(queue_.stream, &status), "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  /// The same, but that `add_squares`, `add_hash`, `call`, `update` and `measure` have their
  /// kernels loaded and enqueue nothing: see LoadingSpace.
  [[nodiscard]] Cuda loading() const {
    Cuda result(*this);
    result.queue_.loads = true;
    return result;
  }

  /// Sets `bytes` bytes to zero.
  void zero(void* memory, std::size_t bytes) const {
    if (bytes == 0) return;
    device::QueueScope const scope(queue_);
    device::check(cudaMemsetAsync(memory, 0, bytes, queue_.stream), "cudaMemsetAsync");
  }
  /// Copies `bytes` bytes between buffers that do not overlap, or are the same.
  void copy(void* to, void const* from, std::size_t bytes) const {
    if (to != from) transfer(to, from, bytes, cudaMemcpyDeviceToDevice);
  }
  /// Copies from memory of the host, which is free on return. Blocks until all work enqueued before
  /// is done, and this.
  void upload(void* to, void const* host, std::size_t bytes) const {
    if (bytes == 0) return;
    device::Wait const wait(queue_);
    // A copy of pageable memory waits for the stream as well, but does not sleep.
    wait.now();
    transfer(to, host, bytes, cudaMemcpyHostToDevice);
    wait.now();
  }
  /// Copies to memory of the host. Blocks until all work enqueued before is done, and this.
  void download(void* host, void const* from, std::size_t bytes) const {
    if (bytes == 0) return;
    device::Wait const wait(queue_);
    // As in `upload`.
    wait.now();
    transfer(host, from, bytes, cudaMemcpyDeviceToHost);
    wait.now();
  }
  /// out[i] = To(in[i]), rounded to nearest even.
  template <class To, class From>
  void convert(To* out, From const* in, std::size_t count) const;
  /// out[i] += in[i], rounded once.
  template <class Sum, class From>
  void add(Sum* out, From const* in, std::size_t count) const;
  /// Adds squares over blocks from x[0] on, each block's sum exactly: the host's bits.
  template <class T>
  void add_squares(ExactSum* sum, T const* x, std::size_t count) const;
  /// Adds the hashes of elements at places from `first` on.
  template <class T>
  void add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) const;
  /// Finds the first parameter that is not its master, rounded.
  template <class P, class M>
  void find_unrounded(std::uint64_t* first,
                      P const* parameter,
                      M const* master,
                      std::size_t count,
                      std::uint64_t place) const;
  /// Calls `function()` once, on one thread of the device.
  template <class F>
  void call(F const& function) const;
  /// One pass of rule and cast over contiguous arrays, unless the step is skipped.
  template <class R, class Real, class Arrays>
  void update(R const& rule,
              StepTerms const* terms,
              BasicStepScalars<Real> const* scalars,
              Arrays const& arrays) const;
  /// Adds what a rule measures of contiguous arrays to a tensor's words, unless the step is
  /// skipped.
  template <class R, class Real, class Arrays>
  void measure(R const& rule,
               StepTerms const* terms,
               BasicStepScalars<Real> const* scalars,
               Arrays const& arrays,
               std::int64_t* words) const;

 private:
  void transfer(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) const {
    if (bytes == 0) return;
    device::QueueScope const scope(queue_);
    device::check(cudaMemcpyAsync(to, from, bytes, kind, queue_.stream), "cudaMemcpyAsync");
  }

  device::Queue queue_;
};

static_assert(RecordingSpace<Cuda>);
static_assert(LoadingSpace<Cuda>);

}  // namespace zero::inline ZERO_NAMESPACE::space

#if defined(__CUDACC__)
#include "zero/device/call.cuh"
#include "zero/device/coded_update.cuh"
#include "zero/device/elementwise.cuh"
#include "zero/device/hash.cuh"
#include "zero/device/measure.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/random_update.cuh"
#include "zero/device/rounded.cuh"
#include "zero/device/update.cuh"

namespace zero::inline ZERO_NAMESPACE::space {

template <class To, class From>
void Cuda::convert(To* out, From const* in, std::size_t count) const {
  device::convert(queue_, out, in, count);
}
template <class Sum, class From>
void Cuda::add(Sum* out, From const* in, std::size_t count) const {
  device::add(queue_, out, in, count);
}
template <class T>
void Cuda::add_squares(ExactSum* sum, T const* x, std::size_t count) const {
  device::add_squares(queue_, sum, x, count);
}
template <class T>
void Cuda::add_hash(std::uint64_t* hash, T const* x, std::size_t count, std::uint64_t first) const {
  device::add_hash(queue_, hash, x, count, first);
}
template <class P, class M>
void Cuda::find_unrounded(std::uint64_t* first,
                          P const* parameter,
                          M const* master,
                          std::size_t count,
                          std::uint64_t place) const {
  device::find_unrounded(queue_, first, parameter, master, count, place);
}
template <class F>
void Cuda::call(F const& function) const {
  device::call(queue_, function);
}
template <class R, class Real, class Arrays>
void Cuda::update(R const& rule,
                  StepTerms const* terms,
                  BasicStepScalars<Real> const* scalars,
                  Arrays const& arrays) const {
  device::update(queue_, rule, terms, scalars, arrays);
}
template <class R, class Real, class Arrays>
void Cuda::measure(R const& rule,
                   StepTerms const* terms,
                   BasicStepScalars<Real> const* scalars,
                   Arrays const& arrays,
                   std::int64_t* words) const {
  device::measure(queue_, rule, terms, scalars, arrays, words);
}

}  // namespace zero::inline ZERO_NAMESPACE::space
#else
namespace zero::inline ZERO_NAMESPACE::space {

/// False, for whatever a host compiler would need kernels for.
template <class... T>
inline constexpr bool compiled_by_nvcc = sizeof...(T) > 1000;

template <class To, class From>
void Cuda::convert(To*, From const*, std::size_t) const {
  static_assert(compiled_by_nvcc<To, From>, "zero: compile this file with nvcc");
}
template <class Sum, class From>
void Cuda::add(Sum*, From const*, std::size_t) const {
  static_assert(compiled_by_nvcc<Sum, From>, "zero: compile this file with nvcc");
}
template <class T>
void Cuda::add_squares(ExactSum*, T const*, std::size_t) const {
  static_assert(compiled_by_nvcc<T>, "zero: compile this file with nvcc");
}
template <class T>
void Cuda::add_hash(std::uint64_t*, T const*, std::size_t, std::uint64_t) const {
  static_assert(compiled_by_nvcc<T>, "zero: compile this file with nvcc");
}
template <class P, class M>
void Cuda::find_unrounded(std::uint64_t*, P const*, M const*, std::size_t, std::uint64_t) const {
  static_assert(compiled_by_nvcc<P, M>, "zero: compile this file with nvcc");
}
template <class F>
void Cuda::call(F const&) const {
  static_assert(compiled_by_nvcc<F>, "zero: compile this file with nvcc");
}
template <class R, class Real, class Arrays>
void Cuda::update(R const&, StepTerms const*, BasicStepScalars<Real> const*, Arrays const&) const {
  static_assert(compiled_by_nvcc<R, Arrays>, "zero: compile this file with nvcc");
}
template <class R, class Real, class Arrays>
void Cuda::measure(
    R const&, StepTerms const*, BasicStepScalars<Real> const*, Arrays const&, std::int64_t*) const {
  static_assert(compiled_by_nvcc<R, Arrays>, "zero: compile this file with nvcc");
}

}  // namespace zero::inline ZERO_NAMESPACE::space
#endif
