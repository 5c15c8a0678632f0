// Every call of the CUDA runtime fails in turn: a clear error on every rank, and nothing left over.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "emulated/runtime.hpp"
#include "support/test.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/comm/run_ranks.hpp"

#include <cuda_runtime.h>

namespace faults_test {
namespace {

using zero::InProcessCuda;

struct Outcome {
  std::string problem;            ///< what went wrong, or nothing
  std::vector<float> parameters;  ///< rank 0's after two steps
  std::size_t calls = 0;          ///< of the runtime
};

/// Two steps of `ranks` ranks, of which call `first_failing` of the runtime fails, and `more` calls
/// after it.
Outcome train(int ranks, std::size_t first_failing, std::size_t more) {
  Outcome outcome;
  auto streams = std::make_unique<Streams const>(ranks);
  std::size_t const before = emulated::calls();
  if (first_failing != emulated::never) emulated::fail(before + first_failing, more);
  try {
    zero::run_ranks(InProcessCuda::group(streams->spaces, {.deadline_s = 20.}),
                    [&](InProcessCuda& comm) {
                      captured_step::Trainer trainer(comm);
                      trainer.step();
                      trainer.step();
                      auto const steps = trainer.steps();
                      CHECK(steps == 2);
                      auto parameters = trainer.parameters();
                      if (comm.rank() == 0) outcome.parameters = std::move(parameters);
                    });
  } catch (zero::Error const& error) {
    outcome.problem = error.what();
    CHECK(error.kind() != zero::ErrorKind::data);
  }
  outcome.calls = emulated::calls() - before;
  streams.reset();
  emulated::fail(emulated::never, emulated::forever);
  // Whoever was told of a failure must not leave it for the next to ask.
  CHECK(cudaGetLastError() == cudaSuccess);
  return outcome;
}

/// Lets calls of a training fail in turn, each `more` times more.
void check_failures(std::size_t more) {
  for (int const ranks : {1, 2, 3}) {
    Outcome const good = train(ranks, emulated::never, 0);
    CHECK(good.problem.empty());
    // Who waits asks more often on a busy machine; and the last calls are those of destructors.
    std::size_t calls = good.calls;
    for (int i = 0; i < 4; ++i) {
      calls = std::min(calls, train(ranks, emulated::never, 0).calls);
    }
    calls -= 60;
    // Ranks race, so that a number is now this call and now that one.
    std::size_t const stride = ranks == 1 ? 1 : 4;
    for (std::size_t n = 0; n < calls; n += stride) {
      INFO("ranks " << ranks << ", call " << n << " of " << calls << " and a few");
      auto const start = std::chrono::steady_clock::now();
      Outcome const bad = train(ranks, n, more);
      // Nobody depends on the one call that selects the trainer's device again.
      if (more == 0 && bad.problem.empty()) {
        CHECK(bad.parameters == good.parameters);
      } else {
        CHECK_MESSAGE(bad.problem.find("cudaErrorUnknown") != std::string::npos, bad.problem);
      }
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    }
  }
}

TEST_CASE("emulated: a runtime that fails for good ends every rank with its reason") {
  check_failures(emulated::forever);
}

TEST_CASE("emulated: one call that fails leaves no work in memory that is given back") {
  check_failures(0);
}

}  // namespace
}  // namespace faults_test
