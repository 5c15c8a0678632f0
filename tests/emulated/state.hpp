/// @file
/// The state of the emulated runtime, for its own sources.
#pragma once

#include "cuda/machine.hpp"
#include "emulated/capture.hpp"
#include "emulated/memory.hpp"
#include "emulated/runtime.hpp"
#include "support/standard.hpp"

#include <cuda_runtime_api.h>

namespace emulated {

inline thread_local int current_device = 0;
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local std::size_t waits_of_thread = 0;

/// Everything there is, behind one lock.
struct State {
  std::mutex mutex;
  fake::Machine machine;
  Memory memory;
  std::set<CUstream_st*> streams;
  std::map<int, CUstream_st> default_streams;  ///< by device; made when they are first used
  std::size_t spinning_copies = 0;
  std::size_t occupancy_questions = 0;
  std::set<std::pair<void const*, int>> loaded;  ///< kernels, by device
  std::size_t captured_loads = 0;
  std::map<void*, std::size_t> pinned;         ///< memory of the host that copies need not wait for
  std::set<int> contexts;                      ///< the devices that the program has initialized
  std::vector<std::weak_ptr<Replay>> replays;  ///< under way
  /// ZERO_EMULATED_ORDER is "late", or the seed of a random order.
  std::optional<std::mt19937> random = [] {
    char const* const order = std::getenv("ZERO_EMULATED_ORDER");
    bool const late = order == nullptr || std::string_view(order) == "late";
    return late ? std::nullopt : std::optional(std::mt19937(std::strtoul(order, nullptr, 10)));
  }();
  Enqueued enqueued;
};

State& state();

/// One call of the runtime at a time; memory is closed again after it.
struct Turn {
  std::lock_guard<std::mutex> lock{state().mutex};
  Turn() = default;
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;
  ~Turn() { state().memory.hide(); }
};

/// What a call has answered, kept for cudaGetLastError.
inline cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

/// This call adds to a capture. Threads may not do so at once, which the real runtime does not tell
/// them: here it invalidates the capture. For calls of this header, which then take a while.
void add_to(std::shared_ptr<Capture> const& capture);
/// The end of a call, outside of its turn: others may meet what it has added to.
void linger();

/// A call that can be made to fail.
template <class Body>
cudaError_t call(Body const& body) {
  cudaError_t const status = [&] {
    Turn const turn;
    return answer(state().machine.call() ? body() : cudaErrorUnknown);
  }();
  linger();
  return status;
}

/// A call that blocks as long as `body` says cudaErrorNotReady. Never made to fail: those who give
/// something back do not ask.
template <class Body>
cudaError_t unfailing_call(Body const& body) {
  for (;; std::this_thread::sleep_for(std::chrono::microseconds(50))) {
    cudaError_t const status = [&] {
      Turn const turn;
      return body();
    }();
    linger();
    if (status != cudaErrorNotReady) return answer(status);
  }
}

/// The same, which can be made to fail.
template <class Body>
cudaError_t blocking_call(Body const& body) {
  bool first = true;
  return unfailing_call([&] {
    return std::exchange(first, false) && !state().machine.call() ? cudaErrorUnknown : body();
  });
}

/// Whether all of some memory of the host is pinned.
inline bool pinned(void const* memory, std::size_t bytes) {
  auto const* const first = static_cast<std::byte const*>(memory);
  for (auto const& [block, size] : state().pinned) {
    auto const* const begin = static_cast<std::byte const*>(block);
    if (first >= begin && first + bytes <= begin + size) return true;
  }
  return false;
}

/// True for a call that must not be made while something is captured, in this thread's mode.
bool forbidden();

inline bool known(CUstream_st* stream) { return state().streams.count(stream) != 0; }

/// True if there is such a stream. Null becomes the default stream of the current device, which
/// waits for no other, as if all others were non-blocking.
inline bool find(CUstream_st*& stream) {
  State& all = state();
  if (stream == nullptr) {
    all.contexts.insert(current_device);
    stream = &all.default_streams[current_device];
    if (all.streams.insert(stream).second) {
      stream->device = current_device;
      stream->queue = all.machine.open();
    }
  }
  return known(stream);
}

/// Puts work into a stream, or into the graph that captures it.
inline void enqueue(CUstream_st* stream, std::function<void()> work) {
  if (stream->capture != nullptr) {
    add_to(stream->capture);
    stream->capture->add(
        [work = std::move(work)](std::size_t) {
          work();
          return true;
        },
        stream->frontier);
    return;
  }
  State& all = state();
  all.machine.enqueue(stream->queue, std::move(work));
  if (all.random) all.machine.progress(*all.random);
}

}  // namespace emulated
