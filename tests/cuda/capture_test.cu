// Whole steps over threads as ranks, captured in a CUDA graph and replayed.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/comm/run_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

namespace capture_test {
namespace {

using zero::InProcessCuda;
using zero::device::check;

template <class Stage>
void check_one_rank() {
  std::vector<float> results[2];
  for (bool const replay : {false, true}) {
    Streams const streams(1);
    auto group = InProcessCuda::group(streams.spaces);
    results[replay ? 1 : 0] = captured_step::train<Stage>(group[0], replay);
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0][0] != 0.f);
}

TEST_CASE("cuda: a captured step trains as one that was enqueued call by call") {
  check_one_rank<zero::stage::PosG>();
  check_one_rank<zero::stage::PosGP>();
}

using Spaces = std::vector<zero::space::Cuda>;

/// What is enqueued to `second` from here on comes after what is in `first`.
void order(zero::space::Cuda const& first, zero::space::Cuda const& second) {
  cudaEvent_t event = nullptr;
  {
    zero::device::Scope const scope(first.device());
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    check(cudaEventRecord(event, first.stream()), "cudaEventRecord");
  }
  check(cudaStreamWaitEvent(second.stream(), event, 0), "cudaStreamWaitEvent");
  check(cudaEventDestroy(event), "cudaEventDestroy");
}
void fork(Spaces const& spaces) {
  for (std::size_t rank = 1; rank < spaces.size(); ++rank) order(spaces[0], spaces[rank]);
}
void join(Spaces const& spaces) {
  for (std::size_t rank = 1; rank < spaces.size(); ++rank) order(spaces[rank], spaces[0]);
}

/// Launches what `enqueue` enqueues to all streams twice, as one graph, on rank 0's stream.
template <class Enqueue>
void replay_twice(Spaces const& spaces, Enqueue const& enqueue) {
  cudaStream_t const stream = spaces[0].stream();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  // The graph comes after what is in this stream, and no other.
  join(spaces);
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  fork(spaces);
  enqueue();
  join(spaces);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  check(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
  fork(spaces);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

/// A thread for each rank: rank 0's stream is captured, the others join it, and one launch on it is
/// a step of all ranks.
template <class Stage>
std::vector<float> train_group(int ranks, bool replay) {
  Streams const streams(ranks);
  auto hosts = zero::InProcess::group(ranks);
  std::mutex mutex;
  constexpr std::size_t whole = captured_step::units * captured_step::count;
  std::vector<float> result(static_cast<std::size_t>(ranks) * whole);
  zero::run_ranks(InProcessCuda::group(streams.spaces), [&](InProcessCuda& comm) {
    // This thread's own, so that one that throws leaves nobody waiting.
    zero::InProcess host = std::move(hosts[static_cast<std::size_t>(comm.rank())]);
    auto const meet = [&] {
      zero::run(host, {.op = zero::Op::all_gather, .dtype = zero::DType::i32, .count = 0});
    };
    captured_step::Trainer<InProcessCuda, Stage> trainer(comm);
    trainer.step();
    trainer.step();
    auto const captured = [&] {
      meet();
      trainer.step();
      meet();
    };
    if (!replay) {
      trainer.step();
      trainer.step();
    } else {
      meet();
      if (comm.rank() == 0) {
        replay_twice(streams.spaces, captured);
      } else {
        captured();
      }
      meet();
    }
    CHECK(trainer.steps() == 4);
    std::vector<float> const own = trainer.parameters();
    std::lock_guard const lock(mutex);
    auto const at = static_cast<std::size_t>(comm.rank()) * whole;
    std::copy(own.begin(), own.end(), result.data() + at);
  });
  return result;
}

template <class Stage>
void check_group(int ranks) {
  std::vector<float> const enqueued = train_group<Stage>(ranks, false);
  std::vector<float> const replayed = train_group<Stage>(ranks, true);
  CHECK(enqueued == replayed);
  CHECK(enqueued[0] != 0.f);
}

TEST_CASE("cuda: a step of several ranks is captured in one graph") {
  for (int const ranks : {2, 3}) {
    check_group<zero::stage::PosG>(ranks);
    check_group<zero::stage::PosGP>(ranks);
  }
}

}  // namespace
}  // namespace capture_test
