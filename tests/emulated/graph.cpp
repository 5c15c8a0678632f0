// Capture and replay in the emulated runtime.
#include "emulated/state.hpp"

#include <memory>
#include <thread>

using emulated::call;
using emulated::Capture;
using emulated::known;
using emulated::state;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&] {
    if (!known(stream)) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<Capture>();
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
    std::shared_ptr<Capture> const capture = stream->capture;
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
