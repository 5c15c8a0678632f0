// The emulated CUDA runtime. Stricter than the real one where that is possible: nothing is done
// before somebody waits for it (with ZERO_EMULATED_ORDER=random, some of it at random), and what
// the real runtime would only punish now and then is refused every time.
#include "emulated/runtime.hpp"

#include "cuda/machine.hpp"
#include "emulated/capture.hpp"
#include "emulated/memory.hpp"

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

namespace emulated {

namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

/// Everything there is, behind one lock.
struct State {
  std::mutex mutex;
  fake::Machine machine;
  Memory memory;
  std::set<CUstream_st*> streams;
  std::mt19937 random{2026};
  bool in_random_order = [] {
    char const* const order = std::getenv("ZERO_EMULATED_ORDER");
    return order != nullptr && std::string_view(order) == "random";
  }();
};

State& state() {
  static State instance;
  return instance;
}

/// One call of the runtime at a time; memory is closed again after it.
struct Turn {
  std::lock_guard<std::mutex> lock{state().mutex};
  Turn() = default;
  Turn(Turn const&) = delete;
  Turn& operator=(Turn const&) = delete;
  ~Turn() { state().memory.hide(); }
};

/// A call that can be made to fail. Its error is kept for cudaGetLastError.
template <class Body>
cudaError_t call(Body const& body) {
  Turn const turn;
  cudaError_t const status = state().machine.call() ? body() : cudaErrorUnknown;
  if (status != cudaSuccess) last_error = status;
  return status;
}

/// A call that must not be made by a thread that captures.
bool forbidden() {
  bool found = false;
  for (CUstream_st* const stream : state().streams) {
    Capture* const capture = stream->capture.get();
    if (capture == nullptr || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (capture->mode == cudaStreamCaptureModeThreadLocal &&
        capture->thread != std::this_thread::get_id()) {
      continue;
    }
    capture->valid = false;
    found = true;
  }
  return found;
}

/// Puts work into a stream, or into the graph that captures it.
void enqueue(CUstream_st* stream, std::function<void()> work) {
  if (stream->capture != nullptr) {
    stream->capture->add(std::move(work), stream->frontier);
    return;
  }
  State& all = state();
  all.machine.enqueue(stream->queue, std::move(work));
  if (all.in_random_order) all.machine.progress(all.random);
}

bool known(CUstream_st* stream) { return state().streams.count(stream) != 0; }

}  // namespace

void fail_from(std::size_t number) { state().machine.fail_at = number; }
std::size_t calls() { return state().machine.calls(); }

cudaError_t launch(cudaLaunchConfig_t const& config, std::function<void()> thread) {
  return call([&] {
    if (!known(config.stream)) return cudaErrorInvalidResourceHandle;
    int const device = config.stream->device;
    if (device != current_device) return cudaErrorInvalidResourceHandle;
    if (config.gridDim.x == 0 || config.blockDim.x == 0 || config.blockDim.x > 1024) {
      return cudaErrorInvalidConfiguration;
    }
    enqueue(config.stream,
            [device, grid = config.gridDim, block = config.blockDim, run = std::move(thread)] {
              state().memory.show_kernel(device);
              run_grid(grid, block, run);
            });
    return cudaSuccess;
  });
}

}  // namespace emulated

using emulated::call;
using emulated::current_device;
using emulated::known;
using emulated::state;

namespace {

cudaError_t allocate(void** memory, std::size_t bytes, bool pooled) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  *memory = state().memory.allocate(current_device, bytes, pooled);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

bool valid_device(int device) { return device >= 0 && device < emulated::devices; }

}  // namespace

char const* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureMerge: return "cudaErrorStreamCaptureMerge";
    case cudaErrorStreamCaptureUnmatched: return "cudaErrorStreamCaptureUnmatched";
    case cudaErrorStreamCaptureUnjoined: return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
    case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorUnknown: return "cudaErrorUnknown";
  }
  return "no such error";
}

char const* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() { return std::exchange(emulated::last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::devices;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  return call([&] {
    *device = current_device;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call([&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    current_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int device) {
  return call([&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    *value = 2;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  return call([&] {
    if (!valid_device(device) || !valid_device(peer)) return cudaErrorInvalidDevice;
    *possible = device != peer ? 1 : 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned /*flags*/) {
  return call([&] {
    if (!valid_device(peer) || peer == current_device) return cudaErrorInvalidDevice;
    return state().memory.connect(current_device, peer) ? cudaSuccess
                                                        : cudaErrorPeerAccessAlreadyEnabled;
  });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return call([&] {
    if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
    return allocate(memory, bytes, false);
  });
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  return call([&] {
    if (!known(stream) || stream->device != current_device) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return allocate(memory, bytes, true);
  });
}

cudaError_t cudaFree(void* memory) {
  // Never made to fail: those who give memory back do not ask.
  emulated::Turn const turn;
  if (memory == nullptr) return cudaSuccess;
  if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
  for (CUstream_st* const stream : state().streams) state().machine.synchronize(stream->queue);
  return state().memory.free(memory) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  emulated::Turn const turn;
  if (!known(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  state().machine.enqueue(stream->queue, [memory] {
    if (!state().memory.free(memory)) std::abort();
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    bool const to_device = state().memory.device_of(to, bytes) >= 0;
    bool const from_device = state().memory.device_of(from, bytes) >= 0;
    bool const fits = (kind == cudaMemcpyHostToDevice && to_device && !from_device) ||
                      (kind == cudaMemcpyDeviceToHost && !to_device && from_device) ||
                      (kind == cudaMemcpyDeviceToDevice && to_device && from_device) ||
                      kind == cudaMemcpyDefault;
    if (!fits) return cudaErrorInvalidValue;
    auto const copy = [=](void const* source) {
      state().memory.show(to);
      state().memory.show(source);
      std::memcpy(to, source, bytes);
    };
    if (stream->capture != nullptr || (to_device && from_device)) {
      emulated::enqueue(stream, [=] { copy(from); });
      return cudaSuccess;
    }
    // Pageable memory of the host is read and written before the call returns.
    if (from_device) {
      state().machine.enqueue(stream->queue, [=] { copy(from); });
      state().machine.synchronize(stream->queue);
      return cudaSuccess;
    }
    auto const* const begin = static_cast<std::byte const*>(from);
    emulated::enqueue(
        stream, [copy, kept = std::vector<std::byte>(begin, begin + bytes)] { copy(kept.data()); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    if (state().memory.device_of(memory, bytes) < 0) return cudaErrorInvalidValue;
    emulated::enqueue(stream, [=] {
      state().memory.show(memory);
      std::memset(memory, value, bytes);
    });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  return call([&] {
    *stream = new CUstream_st;
    (*stream)->device = current_device;
    (*stream)->queue = state().machine.open();
    state().streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulated::Turn const turn;
  if (!known(stream)) return cudaErrorInvalidResourceHandle;
  state().machine.synchronize(stream->queue);
  state().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    if (emulated::forbidden() || stream->capture != nullptr) {
      return cudaErrorStreamCaptureUnsupported;
    }
    state().machine.synchronize(stream->queue);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    if (!event->recorded) return cudaSuccess;
    if (event->capture == nullptr) {
      if (stream->capture != nullptr) {
        stream->capture->valid = false;
        return cudaErrorStreamCaptureIsolation;
      }
      state().machine.wait(stream->queue, event->event);
      return cudaSuccess;
    }
    if (event->capture->ended) return cudaErrorCapturedEvent;
    if (stream->capture == nullptr) {
      stream->capture = event->capture;
      stream->frontier.clear();
    } else if (stream->capture != event->capture) {
      stream->capture->valid = event->capture->valid = false;
      return cudaErrorStreamCaptureMerge;
    }
    stream->frontier.insert(event->frontier.begin(), event->frontier.end());
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return call([&] {
    *event = new CUevent_st;
    (*event)->device = current_device;
    (*event)->event = state().machine.create();
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&] {
    if (!known(stream) || event->device != stream->device) return cudaErrorInvalidResourceHandle;
    event->recorded = true;
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    if (stream->capture == nullptr) state().machine.record(stream->queue, event->event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call([&] {
    if (event->capture != nullptr) {
      event->capture->valid = false;
      return cudaErrorCapturedEvent;
    }
    if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
    state().machine.synchronize(event->event);
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  emulated::Turn const turn;
  delete event;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<emulated::Capture>();
    stream->capture->origin = stream;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->mode = mode;
    stream->frontier.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call([&] {
    *graph = nullptr;
    std::shared_ptr<emulated::Capture> const capture = stream->capture;
    if (capture == nullptr || capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id()) {
      return cudaErrorStreamCaptureWrongThread;
    }
    bool joined = true;
    for (CUstream_st* const other : state().streams) {
      if (other->capture != capture) continue;
      joined = joined && capture->joined(other->frontier, stream->frontier);
      if (other != stream) other->capture = nullptr;
    }
    stream->capture = nullptr;
    capture->ended = true;
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (!joined) return cudaErrorStreamCaptureUnjoined;
    *graph = new CUgraph_st{capture};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned) {
  return call([&] {
    *executable = new CUgraphExec_st{graph->capture};
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    emulated::enqueue(stream, [capture = executable->capture] { capture->replay(); });
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
