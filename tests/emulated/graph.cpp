// Capture and replay in the emulated runtime.
#include "emulated/state.hpp"
#include "support/standard.hpp"

namespace emulated {

namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
thread_local std::shared_ptr<Capture> added_to;

}  // namespace

void add_to(std::shared_ptr<Capture> const& capture) {
  auto const self = std::this_thread::get_id();
  if (capture->inside != std::thread::id() && capture->inside != self) capture->valid = false;
  capture->inside = self;
  added_to = capture;
}

void linger() {
  if (added_to == nullptr) return;
  std::this_thread::sleep_for(std::chrono::microseconds(50));
  Turn const turn;
  added_to->inside = {};
  added_to.reset();
}

bool forbidden() {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  bool found = false;
  for (CUstream_st* const stream : state().streams) {
    Capture* const capture = stream->capture.get();
    if (capture == nullptr || capture->mode == cudaStreamCaptureModeRelaxed) continue;
    bool const own = capture->thread == std::this_thread::get_id();
    bool const global =
        capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
    if (!own && !global) continue;
    capture->valid = false;
    found = true;
  }
  return found;
}

void Replay::enqueue(std::shared_ptr<Replay> const& replay) {
  auto& replays = state().replays;
  std::erase_if(replays, [](auto const& other) { return other.expired(); });
  replays.push_back(replay);
  replay->position_ =
      state().machine.enqueue_attempt(replay->queue_, [replay] { return replay->attempt(); });
}

bool Replay::advance() {
  for (std::size_t n = done_.size(); n-- > 0;) {
    if (done_[n] != 0) continue;
    auto const& after = capture_->nodes[n].after;
    bool const ready =
        std::all_of(after.begin(), after.end(), [this](std::size_t m) { return done_[m] != 0; });
    if (!ready || !capture_->nodes[n].run(launch_)) continue;
    done_[n] = 1;
    --left_;
    return true;
  }
  return false;
}

bool Replay::attempt() {
  if (std::exchange(busy_, true)) return false;
  bool moved = true;
  while (left_ > 0 && moved) {
    moved = advance();
    if (moved) continue;
    // What is left waits for launches on other streams.
    auto const replays = state().replays;
    for (auto const& other : replays) {
      auto const replay = other.lock();
      if (replay == nullptr || replay->busy_ || replay->left_ == 0) continue;
      fake::Machine::reach(replay->queue_, replay->position_ + 1);
    }
    moved = advance();
  }
  busy_ = false;
  return left_ == 0;
}

}  // namespace emulated

using emulated::call;
using emulated::Capture;
using emulated::find;
using emulated::state;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call([&] {
    if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    stream->capture = std::make_shared<Capture>();
    stream->capture->origin = stream;
    stream->capture->thread = std::this_thread::get_id();
    stream->capture->mode = mode;
    stream->frontier.clear();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call([&] {
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    *status =
        stream->capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call([&] {
    std::swap(*mode, emulated::thread_mode);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return call([&] {
    *graph = nullptr;
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
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
    if (!find(stream)) return cudaErrorInvalidResourceHandle;
    if (stream->capture != nullptr) return cudaErrorStreamCaptureUnsupported;
    emulated::Replay::enqueue(
        std::make_shared<emulated::Replay>(executable->capture, stream->queue));
    if (state().random) state().machine.progress(*state().random);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  emulated::Turn const turn;
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  emulated::Turn const turn;
  delete graph;
  return cudaSuccess;
}
