// The emulated device tells right from wrong: else the tests over it would prove nothing.
#include "cuda/streams.hpp"
#include "emulated/runtime.hpp"
#include "support/test.hpp"
#include "zero/device/allocators.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/outside_capture.hpp"
#include "zero/space/cuda.hpp"

#include <cuda_runtime.h>

namespace emulated_test {
namespace {

using zero::device::MallocAllocator;
using zero::space::Cuda;

/// By whichever space, from an array of whichever other.
int fetched(Cuda const& space, Array<int> const& from) {
  int value = -1;
  space.download(&value, from.data(), sizeof(int));
  return value;
}

struct Store {
  int* to;
  int value;
  void operator()() const { *to = value; }
};

TEST_CASE("emulated: without an event, another stream's work is not there yet") {
  Streams const streams(3);
  Cuda const& writer = streams.spaces[0];
  Cuda const& reader = streams.spaces[2];  // of the same device
  Array<int> const word(writer, {0});
  Array<int> const copy(reader, {-1});
  CHECK(fetched(writer, word) == 0);
  writer.call(Store{word.data(), 7});
  reader.copy(copy.data(), word.data(), sizeof(int));
  CHECK(fetched(reader, copy) == 0);

  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventRecord(event, writer.stream()) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(reader.stream(), event) == cudaSuccess);
  reader.copy(copy.data(), word.data(), sizeof(int));
  CHECK(fetched(reader, copy) == 7);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

template <bool waits>
ZERO_KERNEL hand_over(int* out) {
  __shared__ int word;
  // Blocks share their memory one after the other.
  if (threadIdx.x == 5) word = static_cast<int>(blockIdx.x) + 1;
  if constexpr (waits) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = word;
}

template <bool waits>
int right_words() {
  OneStream const device;
  constexpr unsigned blocks = 3;
  constexpr unsigned threads = 32;
  Array<int> const words(device.space, std::vector<int>(std::size_t{blocks} * threads));
  zero::device::launch(
      device.space.queue(), "hand_over", blocks, threads, hand_over<waits>, words.data());
  auto const values = words.values();
  int right = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    right += values[i] == static_cast<int>(i / threads) + 1 ? 1 : 0;
  }
  return right;
}

TEST_CASE("emulated: threads that do not wait for one another see what was there before") {
  CHECK(right_words<true>() == 96);
  CHECK(right_words<false>() < 96);
}

ZERO_KERNEL count_blocks(int* out) {
  if (zero::device::grid_thread() == 0) *out = static_cast<int>(gridDim.x);
}

TEST_CASE_FIXTURE(OneStream,
                  "emulated: kernels have no more blocks than they need, or run at once") {
  using zero::device::block_threads;
  Array<int> const word(space, {0});
  auto const blocks = [&](std::size_t items) {
    zero::device::launch_over<count_blocks>(space.queue(), "count_blocks", items, word.data());
    return fetched(space, word);
  };
  CHECK(blocks(1) == 1);
  CHECK(blocks(32) == 1);
  // Every multiprocessor has one, of fewer threads where there is little to do.
  CHECK(blocks(33) == 2);
  CHECK(blocks(block_threads) == emulated::multiprocessors);
  CHECK(blocks(block_threads * emulated::multiprocessors) == emulated::multiprocessors);
  CHECK(blocks(block_threads * emulated::multiprocessors + 1) == emulated::multiprocessors + 1);
  CHECK(blocks(std::size_t{1} << 40) == emulated::multiprocessors * emulated::resident_blocks);
  // What a block prepares nothing for has a block for each tile.
  auto const tiles = [&](unsigned groups, std::size_t items) {
    CHECK(zero::device::try_launch_tiles<count_blocks>(
              space.queue(), groups, items, 100, word.data()) == cudaSuccess);
    return fetched(space, word);
  };
  CHECK(tiles(1, 0) == 1);
  CHECK(tiles(1, 100) == 1);
  CHECK(tiles(1, 101) == 2);
  CHECK(tiles(3, 5000) == 150);
}

template <int number>
ZERO_KERNEL launched_often(int* out) {
  if (zero::device::grid_thread() == 0) *out += number;
}

TEST_CASE("emulated: occupancy is asked for once per kernel and device") {
  Streams const streams(4);
  Array<int> const first(streams.spaces[0], {0});
  Array<int> const second(streams.spaces[1], {0});
  auto const launch = [&]<int number>(std::size_t rank, Array<int> const& word) {
    zero::device::launch_over<launched_often<number>>(
        streams.spaces[rank].queue(), "launched_often", 1000, word.data());
  };
  std::size_t const before = emulated::occupancy_questions();
  auto const asked = [before] { return emulated::occupancy_questions() - before; };
  // A question that failed has no answer that could be kept.
  emulated::fail(emulated::calls() + 1, 0);
  CHECK_THROWS_AS(launch.template operator()<1>(0, first), zero::Error);
  emulated::fail(emulated::never, emulated::forever);
  CHECK(asked() == 0);
  for (int i = 0; i < 3; ++i) launch.template operator()<1>(0, first);
  CHECK(asked() == 1);
  launch.template operator()<1>(2, first);  // another stream of the device
  CHECK(asked() == 1);
  for (int i = 0; i < 3; ++i) launch.template operator()<1>(1, second);
  CHECK(asked() == 2);
  for (int i = 0; i < 3; ++i) launch.template operator()<10>(0, first);
  CHECK(asked() == 3);
  CHECK(fetched(streams.spaces[1], second) == 3);
}

TEST_CASE("emulated: work goes to streams of the current device only") {
  Streams const streams(2);
  zero::device::Queue queue = streams.spaces[1].queue();
  Array<int> const words(streams.spaces[1], std::vector<int>(32));
  {
    zero::device::Scope const scope(1);
    CHECK(zero::device::try_launch(queue, 1, 32, hand_over<true>, words.data()) == cudaSuccess);
  }
  CHECK(zero::device::try_launch(queue, 1, 32, hand_over<true>, words.data()) ==
        cudaErrorInvalidResourceHandle);
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, 0) == cudaSuccess);
  CHECK(cudaEventRecord(event, streams.handles[1]) == cudaErrorInvalidResourceHandle);
  CHECK(cudaEventDestroy(event) == cudaSuccess);
  CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("emulated: null is the default stream of the space's device, whichever is current") {
  Cuda const space(1, nullptr);
  Array<int> const word(space, {5});
  CHECK(fetched(space, word) == 5);
  space.call(Store{word.data(), 7});
  CHECK(fetched(space, word) == 7);
  int current = -1;
  CHECK(cudaGetDevice(&current) == cudaSuccess);
  CHECK(current == 0);
}

TEST_CASE("emulated: a thread that has chosen no device initializes none but the space's") {
  Streams const streams(2);
  Cuda const& space = streams.spaces[1];
  Array<int> const word(space, {0});
  auto const check = [](bool chosen, auto const& body) {
    emulated::forget_initializations();
    std::thread([&] {
      if (chosen) CHECK(cudaSetDevice(0) == cudaSuccess);
      body();
      int current = -1;
      CHECK(cudaGetDevice(&current) == cudaSuccess);
      CHECK(current == (chosen ? 0 : 1));
    }).join();
    CHECK(emulated::initialized(0) == chosen);
    CHECK(emulated::initialized(1));
  };
  for (bool const chosen : {false, true}) {
    check(chosen, [&] {
      space.call(Store{word.data(), 7});
      CHECK(fetched(space, word) == 7);
    });
    MallocAllocator allocator(1);
    void* memory = nullptr;
    check(chosen, [&] { memory = allocator.allocate(1, 256); });
    check(chosen, [&] { allocator.deallocate(memory, 1, 256); });
  }
}

TEST_CASE_FIXTURE(OneStream, "emulated: a host that copies sleeps until it is its turn") {
  std::size_t const before = emulated::spinning_copies();
  Array<int> const word(space, {0});
  int const five = 5;
  space.zero(word.data(), sizeof(int));
  space.upload(word.data(), &five, sizeof(int));
  CHECK(emulated::spinning_copies() == before);
  space.call(Store{word.data(), 7});
  CHECK(fetched(space, word) == 7);
  CHECK(emulated::spinning_copies() == before);

  int value = 0;
  space.zero(word.data(), sizeof(int));
  CHECK(cudaMemcpyAsync(
            &value, word.data(), sizeof(int), cudaMemcpyDeviceToHost, streams.handles[0]) ==
        cudaSuccess);
  CHECK(emulated::spinning_copies() == before + 1);
}

TEST_CASE("emulated: memory goes back in the order of the stream that it is from") {
  zero::device::AsyncAllocator allocator(1);
  void* const memory = allocator.allocate(sizeof(int), 256);
  Cuda const space(1, nullptr);
  space.call(Store{static_cast<int*>(memory), 7});
  allocator.deallocate(memory, sizeof(int), 256);
  auto const kind_after = [memory](int device) {
    zero::device::Scope const scope(device);
    CHECK(cudaStreamSynchronize(nullptr) == cudaSuccess);
    cudaPointerAttributes attributes{};
    CHECK(cudaPointerGetAttributes(&attributes, memory) == cudaSuccess);
    return attributes.type;
  };
  CHECK(kind_after(0) == cudaMemoryTypeDevice);
  CHECK(kind_after(1) == cudaMemoryTypeUnregistered);
}

/// Captures what `body` does on one stream; the runtime's verdict.
template <class Body>
cudaError_t captured(Streams const& streams, Body const& body) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(streams.handles[0], cudaStreamCaptureModeThreadLocal) ==
        cudaSuccess);
  body();
  cudaError_t const status = cudaStreamEndCapture(streams.handles[0], &graph);
  CHECK((graph != nullptr) == (status == cudaSuccess));
  CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
  return status;
}

TEST_CASE("emulated: capture refuses what a graph cannot hold") {
  Streams const streams(3);
  cudaStream_t const first = streams.handles[0];
  cudaStream_t const other = streams.handles[2];
  Cuda const& space = streams.spaces[0];
  Array<int> const word(space, {0});
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, 0) == cudaSuccess);

  CHECK(captured(streams, [&] { space.call(Store{word.data(), 1}); }) == cudaSuccess);
  CHECK(captured(streams, [&] {
          CHECK_THROWS_AS(static_cast<void>(fetched(space, word)), zero::Error);
        }) == cudaErrorStreamCaptureInvalidated);
  CHECK(captured(streams, [&] { CHECK_THROWS_AS(Array<int>(space, {0}), zero::Error); }) ==
        cudaErrorStreamCaptureInvalidated);

  CHECK(cudaEventRecord(event, other) == cudaSuccess);
  CHECK(captured(streams, [&] {
          CHECK(cudaStreamWaitEvent(first, event) == cudaErrorStreamCaptureIsolation);
        }) == cudaErrorStreamCaptureInvalidated);

  auto const fork = [&] {
    CHECK(cudaEventRecord(event, first) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(other, event) == cudaSuccess);
    streams.spaces[2].call(Store{word.data(), 2});
  };
  CHECK(captured(streams, fork) == cudaErrorStreamCaptureUnjoined);
  CHECK(captured(streams, [&] {
          fork();
          CHECK(cudaEventRecord(event, other) == cudaSuccess);
          CHECK(cudaStreamWaitEvent(first, event) == cudaSuccess);
        }) == cudaSuccess);
  CHECK(cudaStreamWaitEvent(first, event) == cudaErrorCapturedEvent);

  // Another thread that asks for other work disturbs a capture in the default mode, unless it says
  // that it knows.
  CHECK(cudaEventRecord(event, other) == cudaSuccess);
  for (bool const knows : {false, true}) {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal) == cudaSuccess);
    std::thread([&] {
      auto mode = knows ? cudaStreamCaptureModeRelaxed : cudaStreamCaptureModeGlobal;
      CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
      CHECK(cudaEventQuery(event) == (knows ? cudaSuccess : cudaErrorStreamCaptureUnsupported));
    }).join();
    CHECK(cudaStreamEndCapture(first, &graph) ==
          (knows ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  static_cast<void>(cudaGetLastError());
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("emulated: threads that add to one capture at once invalidate it") {
  Streams const streams(3);
  cudaEvent_t event = nullptr;
  CHECK(cudaEventCreateWithFlags(&event, 0) == cudaSuccess);
  Array<int> const words(streams.spaces[0], {0, 0});
  std::mutex turns;
  auto const add_often = [&](int rank, bool turn) {
    for (int i = 0; i < 50; ++i) {
      auto const lock = turn ? std::unique_lock(turns) : std::unique_lock<std::mutex>();
      streams.spaces[static_cast<std::size_t>(rank)].call(Store{words.data() + rank / 2, 1});
    }
  };
  for (bool const turn : {true, false}) {
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamBeginCapture(streams.handles[0], cudaStreamCaptureModeRelaxed) == cudaSuccess);
    CHECK(cudaEventRecord(event, streams.handles[0]) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(streams.handles[2], event) == cudaSuccess);
    std::thread other([&] { add_often(2, turn); });
    add_often(0, turn);
    other.join();
    CHECK(cudaEventRecord(event, streams.handles[2]) == cudaSuccess);
    CHECK(cudaStreamWaitEvent(streams.handles[0], event) == cudaSuccess);
    CHECK(cudaStreamEndCapture(streams.handles[0], &graph) ==
          (turn ? cudaSuccess : cudaErrorStreamCaptureInvalidated));
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  static_cast<void>(cudaGetLastError());
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("emulated: a thread has its mode of capture back, even where it could not be exchanged") {
  for (bool const fails : {false, true}) {
    if (fails) emulated::fail(emulated::calls(), 0);
    { zero::device::OutsideCapture const outside; }
    emulated::fail(emulated::never, emulated::forever);
    auto mode = cudaStreamCaptureModeGlobal;
    CHECK(cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess);
    CHECK(mode == cudaStreamCaptureModeGlobal);
  }
}

}  // namespace
}  // namespace emulated_test
