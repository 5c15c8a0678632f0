// Every call of the CUDA runtime fails in turn: a clear error on every rank, and nothing left over.
#include "cuda/captured_step.cuh"
#include "cuda/streams.hpp"
#include "emulated/runtime.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/comm/run_ranks.hpp"

#include <cuda_runtime.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace {

using zero::InProcessCuda;

/// Two steps of `ranks` ranks, the calls of the runtime from number `first_failing` on failing.
/// Returns what went wrong, or nothing; `calls` is how many calls were made.
std::string train(int ranks, std::size_t first_failing, std::size_t& calls) {
  constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
  Streams const streams(ranks);
  std::size_t const before = emulated::calls();
  if (first_failing != never) emulated::fail_from(before + first_failing);
  std::string result;
  try {
    zero::run_ranks(InProcessCuda::group(streams.spaces, {.deadline_s = 20.}),
                    [&](InProcessCuda& comm) {
                      captured_step::Trainer trainer(comm);
                      trainer.step();
                      trainer.step();
                      auto const steps = trainer.steps();
                      CHECK(steps == 2);
                      auto const parameters = trainer.parameters();
                      CHECK(parameters[0] != 0.f);
                    });
  } catch (zero::Error const& error) {
    result = error.what();
    CHECK(error.kind() != zero::ErrorKind::data);
  }
  calls = emulated::calls() - before;
  emulated::fail_from(never);
  // Whoever was told of a failure must not leave it for the next to ask.
  CHECK(cudaGetLastError() == cudaSuccess);
  return result;
}

TEST_CASE("emulated: whichever call of the runtime fails, every rank ends with its reason") {
  for (int const ranks : {1, 2}) {
    std::size_t calls = 0;
    CHECK(train(ranks, std::numeric_limits<std::size_t>::max(), calls).empty());
    // Ranks race, so that a number is now this call and now that one; all of them come up.
    std::size_t const stride = ranks == 1 ? 1 : 3;
    for (std::size_t n = 0; n + 20 < calls; n += stride) {
      INFO("ranks " << ranks << ", call " << n << " of " << calls);
      auto const start = std::chrono::steady_clock::now();
      std::size_t made = 0;
      std::string const problem = train(ranks, n, made);
      CHECK_MESSAGE(problem.find("cudaErrorUnknown") != std::string::npos, problem);
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
    }
  }
}

}  // namespace
