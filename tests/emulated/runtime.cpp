// The emulated CUDA runtime. Stricter than the real one where that is possible: nothing is done
// before somebody waits for it (with a number as ZERO_EMULATED_ORDER, some of it at random), and
// what the real runtime would only punish now and then is refused every time.
#include "emulated/runtime.hpp"

#include "emulated/grid.hpp"
#include "emulated/state.hpp"
#include "support/standard.hpp"

#include <cuda_runtime.h>

namespace emulated {

State& state() {
  static State instance;
  return instance;
}

namespace {

/// A device that fails for good does nothing any more.
bool dead() {
  fake::Machine const& machine = state().machine;
  return machine.calls() > machine.fail_at && machine.fail_more == forever;
}

/// Ready once all work of a stream is done.
cudaError_t drained(fake::Stream* queue) {
  if (dead()) return cudaSuccess;
  return state().machine.synchronize(queue) ? cudaSuccess : cudaErrorNotReady;
}

}  // namespace

void fail(std::size_t number, std::size_t more) {
  Turn const turn;
  state().machine.fail_at = number;
  state().machine.fail_more = more;
}
std::size_t calls() { return state().machine.calls(); }
bool initialized(int device) {
  Turn const turn;
  return state().contexts.count(device) != 0;
}
void forget_initializations() {
  Turn const turn;
  state().contexts.clear();
}
std::size_t occupancy_questions() {
  Turn const turn;
  return state().occupancy_questions;
}
Enqueued enqueued() {
  Turn const turn;
  return state().enqueued;
}
std::size_t captured_loads() {
  Turn const turn;
  return state().captured_loads;
}
void forget_loads() {
  Turn const turn;
  state().loaded.clear();
}
std::size_t streams_of(int device, int priority) {
  Turn const turn;
  auto const& streams = state().streams;
  return static_cast<std::size_t>(
      std::count_if(streams.begin(), streams.end(), [&](CUstream_st* stream) {
        return stream->device == device && stream->priority == priority;
      }));
}
std::size_t spinning_copies() {
  Turn const turn;
  return state().spinning_copies;
}

std::size_t host_waits() { return waits_of_thread; }

cudaError_t launch(cudaLaunchConfig_t const& config,
                   std::function<void()> thread,
                   void const* kernel) {
  return call([&] {
    cudaStream_t stream = config.stream;
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    int const device = stream->device;
    if (device != current_device) return cudaErrorInvalidResourceHandle;
    if (config.gridDim.x == 0 || config.blockDim.x == 0 || config.blockDim.x > 1024) {
      return cudaErrorInvalidConfiguration;
    }
    ++state().enqueued.launches;
    if (kernel != nullptr && state().loaded.emplace(kernel, device).second) {
      state().captured_loads += stream->capture != nullptr ? 1u : 0u;
    }
    enqueue(stream,
            [device, grid = config.gridDim, block = config.blockDim, run = std::move(thread)] {
              state().memory.show_kernel(device);
              run_grid(grid, block, run);
            });
    return cudaSuccess;
  });
}

cudaError_t load(void const* kernel) {
  return call([&] {
    bool const loads = state().loaded.emplace(kernel, current_device).second;
    return loads && forbidden() ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
  });
}

cudaError_t occupancy(int* blocks) {
  return call([&] {
    ++state().occupancy_questions;
    *blocks = resident_blocks;
    return cudaSuccess;
  });
}

}  // namespace emulated

using emulated::blocking_call;
using emulated::call;
using emulated::current_device;
using emulated::drained;
using emulated::find;
using emulated::known;
using emulated::state;

namespace {

cudaError_t allocate(void** memory, std::size_t bytes, bool pooled) {
  *memory = nullptr;
  if (bytes == 0) return cudaSuccess;
  state().contexts.insert(current_device);
  *memory = state().memory.allocate(current_device, bytes, pooled);
  return *memory != nullptr ? cudaSuccess : cudaErrorMemoryAllocation;
}

bool valid_device(int device) { return device >= 0 && device < emulated::devices; }

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::devices;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call([&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::strncpy(properties->name, "emulated device", sizeof(properties->name) - 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
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
    state().contexts.insert(device);
    return cudaSuccess;
  });
}

namespace {

int primary_context_state(int device, unsigned* flags, int* active) {
  emulated::Turn const turn;
  if (!valid_device(device)) return cudaErrorInvalidDevice;
  *flags = 0;
  *active = state().contexts.count(device) != 0 ? 1 : 0;
  return cudaSuccess;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(char const* symbol,
                                             void** function,
                                             unsigned /*version*/,
                                             unsigned long long /*flags*/,
                                             cudaDriverEntryPointQueryResult* /*result*/) {
  return call([&] {
    bool const found = std::string_view(symbol) == "cuDevicePrimaryCtxGetState";
    *function = found ? reinterpret_cast<void*>(&primary_context_state) : nullptr;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr /*attribute*/, int device) {
  return call([&] {
    if (!valid_device(device)) return cudaErrorInvalidDevice;
    *value = emulated::multiprocessors;
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

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, void const* memory) {
  return call([&] {
    bool const device = state().memory.device_of(memory, 0) >= 0;
    attributes->type = device ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
    return cudaSuccess;
  });
}

cudaError_t cudaMemGetInfo(std::size_t* unused, std::size_t* all) {
  return call([&] {
    state().contexts.insert(current_device);
    *unused = state().memory.unused(current_device);
    *all = emulated::Memory::device_bytes;
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return call([&] {
    if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
    return allocate(memory, bytes, false);
  });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned /*flags*/) {
  return call([&] {
    if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
    *memory = std::malloc(bytes);
    if (*memory == nullptr) return cudaErrorMemoryAllocation;
    state().pinned.emplace(*memory, bytes);
    return cudaSuccess;
  });
}

cudaError_t cudaFreeHost(void* memory) {
  emulated::Turn const turn;
  state().pinned.erase(memory);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  return call([&] {
    if (!find(stream) || stream->device != current_device) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    return allocate(memory, bytes, true);
  });
}

cudaError_t cudaFree(void* memory) {
  {
    // Whatever the device that the memory is of.
    emulated::Turn const turn;
    state().contexts.insert(current_device);
  }
  if (memory == nullptr) return cudaSuccess;
  return emulated::unfailing_call([&] {
    if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
    // Waits for the device.
    int const device = state().memory.device_of(memory, 0);
    for (CUstream_st* const stream : state().streams) {
      if (stream->device == device && drained(stream->queue) != cudaSuccess) {
        return cudaErrorNotReady;
      }
    }
    return state().memory.free(memory) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  emulated::Turn const turn;
  if (!find(stream)) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
  state().machine.enqueue(stream->queue, [memory] {
    if (!state().memory.free(memory)) std::abort();
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(
    void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  bool enqueued = false;
  return blocking_call([&] {
    if (enqueued) return drained(stream->queue);
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    ++state().enqueued.copies;
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
    bool const waits =
        !(to_device && from_device) && !emulated::pinned(to_device ? from : to, bytes);
    if (stream->capture != nullptr || !waits) {
      emulated::enqueue(stream, [=] { copy(from); });
      return cudaSuccess;
    }
    // Pageable memory of the host is read and written before the call returns.
    if (stream->queue->done != stream->queue->enqueued) ++state().spinning_copies;
    if (from_device) {
      state().machine.enqueue(stream->queue, [=] { copy(from); });
      enqueued = true;
      return drained(stream->queue);
    }
    auto const* const begin = static_cast<std::byte const*>(from);
    emulated::enqueue(
        stream, [copy, kept = std::vector<std::byte>(begin, begin + bytes)] { copy(kept.data()); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  return call([&] {
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    ++state().enqueued.copies;
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

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  return call([&] {
    state().contexts.insert(current_device);
    *lowest = 0;
    *highest = emulated::highest_priority;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/, int priority) {
  return call([&] {
    state().contexts.insert(current_device);
    *stream = new CUstream_st;
    (*stream)->device = current_device;
    (*stream)->priority = std::clamp(priority, emulated::highest_priority, 0);
    (*stream)->queue = state().machine.open();
    state().streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulated::Turn const turn;
  if (!known(stream)) return cudaErrorInvalidResourceHandle;
  // What cannot be done yet goes on without the stream.
  if (emulated::dead()) state().machine.drop(stream->queue);
  static_cast<void>(drained(stream->queue));
  state().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++emulated::waits_of_thread;
  return blocking_call([&] {
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    if (emulated::forbidden() || stream->capture != nullptr) {
      return cudaErrorStreamCaptureUnsupported;
    }
    return drained(stream->queue);
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call([&] {
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    if (emulated::forbidden() || stream->capture != nullptr) {
      return cudaErrorStreamCaptureUnsupported;
    }
    fake::Event now{.stream = stream->queue, .upto = stream->queue->enqueued};
    return state().machine.synchronize(&now, 1) ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  return call([&] {
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    ++state().enqueued.waits;
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
    emulated::add_to(event->capture);
    stream->frontier.insert(event->frontier.begin(), event->frontier.end());
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  return call([&] {
    state().contexts.insert(current_device);
    *event = new CUevent_st;
    (*event)->device = current_device;
    (*event)->event = state().machine.create();
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  return call([&] {
    if (!begin->recorded || !end->recorded) return cudaErrorInvalidResourceHandle;
    bool const over =
        state().machine.synchronize(begin->event, 0) && state().machine.synchronize(end->event, 0);
    if (!over) return cudaErrorNotReady;
    // Time means nothing here; what is divided by it must not be divided by zero.
    *milliseconds = 1.f;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call([&] {
    if (!find(stream) || event->device != stream->device) return cudaErrorInvalidResourceHandle;
    ++state().enqueued.records;
    if (stream->capture != nullptr) emulated::add_to(stream->capture);
    event->recorded = true;
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    if (stream->capture == nullptr) state().machine.record(stream->queue, event->event);
    return cudaSuccess;
  });
}

namespace {

/// Asks for an event, and lets so much work be done as nobody is in the way of.
cudaError_t ask(cudaEvent_t event, std::size_t most) {
  state().contexts.insert(current_device);
  if (event->capture != nullptr) {
    event->capture->valid = false;
    return cudaErrorCapturedEvent;
  }
  if (emulated::forbidden()) return cudaErrorStreamCaptureUnsupported;
  return state().machine.synchronize(event->event, most) ? cudaSuccess : cudaErrorNotReady;
}

}  // namespace

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++emulated::waits_of_thread;
  return blocking_call([&] { return ask(event, ~std::size_t{0}); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call([&] { return ask(event, 1); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  emulated::Turn const turn;
  state().contexts.insert(current_device);
  delete event;
  return cudaSuccess;
}
