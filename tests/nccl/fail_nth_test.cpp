/// Every call of NCCL and CUDA fails once, with every result, and nothing worse than an error comes
/// of it.
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace fail_nth_test {
namespace {

using zero::Error;
using zero::Op;
using zero::nccl::Registration;
using zero::nccl::Result;
using Comm = fake::Nccl<>;

constexpr int ranks = 2;

struct Outcome {
  int errors = 0;
  int wrong = 0;
  std::string strange{};
  long calls = 0;
};

/// Everything a trainer does with a group, on one rank.
void use(Comm& comm, std::atomic<int>& wrong) {
  auto allocator = comm.allocator();
  constexpr std::size_t count = 4000;
  constexpr std::size_t bytes = 2 * count * sizeof(float);
  auto const give_back = [&](float* memory) { allocator.deallocate(memory, bytes, 4096); };
  // As a trainer's arena would.
  std::unique_ptr<float[], decltype(give_back)> const memory(
      static_cast<float*>(allocator.allocate(bytes, 4096)), give_back);
  float* const data = memory.get();
  Comm child = comm.split(0, comm.rank());
  for (int round = 0; round < 12; ++round) {
    for (std::size_t i = 0; i < 2 * count; ++i) data[i] = static_cast<float>(round);
    auto const mine = count * static_cast<std::size_t>(comm.rank());
    zero::run(comm,
              {.op = Op::reduce_scatter,
               .count = count,
               .send = data,
               .recv = data + mine,
               .bucket = round});
    zero::run(
        comm,
        {.op = Op::all_gather, .count = count, .send = data + mine, .recv = data, .bucket = round});
    double x = comm.rank();
    zero::run(child,
              {.op = Op::all_reduce,
               .dtype = zero::DType::f64,
               .accumulate = zero::DType::f64,
               .count = 1,
               .send = &x,
               .recv = &x});
    if (x != 1.) ++wrong;
    for (std::size_t i = 0; i < 2 * count; ++i) {
      if (data[i] != static_cast<float>(ranks * round)) ++wrong;
    }
  }
  child.close();
}

Outcome run_once(long call, Result result, unsigned seed) {
  fake::World world(ranks, seed);
  fake::Script& script = world.process(static_cast<int>(seed % ranks)).script;
  script.fail_call = call;
  script.fail_with = result;
  std::atomic<int> errors{0};
  std::atomic<int> wrong{0};
  std::atomic<int> strange{0};
  fake::run_processes(world, [&](fake::Process& process) {
    process.script.in_progress = static_cast<int>(seed % 3);
    auto const registration = seed % 2 == 0 ? Registration::windows : Registration::buffers;
    fake::Stream* const compute = fake::world_stream(world, process);
    try {
      // No abort hangs here, but its thread may begin late on a busy machine: its world must be
      // there.
      Comm comm(
          {{1}, process.rank, ranks, compute},
          fake::quick_options({.deadline_s = 1, .grace_s = 60, .registration = registration}));
      try {
        use(comm, wrong);
        comm.close();
      } catch (Error const& error) {
        // As a trainer does who cannot go on.
        comm.report_failure(error.what());
        throw;
      }
    } catch (Error const&) {
      ++errors;
    } catch (...) {
      ++strange;
    }
  });
  Outcome outcome{.errors = errors, .wrong = wrong};
  outcome.strange = world.violations();
  if (strange != 0) outcome.strange += "an exception that is not an Error; ";
  if (errors == 0 && wrong != 0) outcome.strange += "wrong results and no error; ";
  if (world.live_memory != 0) outcome.strange += "memory is left; ";
  if (world.live_events != 0) outcome.strange += "events are left; ";
  if (world.live_streams != 0) outcome.strange += "streams are left; ";
  outcome.calls = world.process(static_cast<int>(seed % ranks)).calls;
  return outcome;
}

TEST_CASE("Nccl: nothing fails and all is right") {
  for (unsigned seed = 0; seed < 6; ++seed) {
    Outcome const outcome = run_once(-1, Result::success, seed);
    CHECK(outcome.errors == 0);
    CHECK(outcome.wrong == 0);
    CHECK_MESSAGE(outcome.strange.empty(), outcome.strange);
    // What follows is about the first 500 calls, so there have to be as many.
    CHECK(outcome.calls > 500);
  }
}

void fail_every_call(std::vector<Result> const& results, long step) {
  struct Plan {
    long call;
    Result result;
  };
  std::vector<Plan> plans;
  for (long call = 0; call < 500; call += step) {
    for (Result const result : results) plans.push_back({call, result});
  }
  std::vector<Outcome> outcomes(plans.size());
  std::atomic<std::size_t> next{0};
  // Most of a run is waiting for deadlines, so many are under way at once.
  std::vector<std::jthread> workers;
  for (int worker = 0; worker < 8; ++worker) {
    workers.emplace_back([&] {
      for (std::size_t i = next++; i < plans.size(); i = next++) {
        auto const [call, result] = plans[i];
        unsigned const seed = static_cast<unsigned>(call) + static_cast<unsigned>(result) * 1000;
        outcomes[i] = run_once(call, result, seed);
      }
    });
  }
  workers.clear();
  int bad = 0;
  std::size_t told = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (outcomes[i].errors > 0) ++told;
    if (outcomes[i].strange.empty()) continue;
    if (++bad > 5) continue;
    FAIL_CHECK("call ", plans[i].call, ", ", name(plans[i].result), ": ", outcomes[i].strange);
  }
  CHECK(bad == 0);
  // Nothing that fails goes unnoticed, but for what is given back at the end anyway.
  CHECK(told > plans.size() * 9 / 10);
}

TEST_CASE("Nccl: each of the first 500 calls fails with each result [full]") {
  fail_every_call({Result::unhandled_cuda_error,
                   Result::system_error,
                   Result::internal_error,
                   Result::invalid_argument,
                   Result::invalid_usage,
                   Result::remote_error},
                  1);
}

TEST_CASE("Nccl: each seventh of the first 500 calls fails") {
  fail_every_call({Result::internal_error, Result::invalid_argument}, 7);
}

}  // namespace
}  // namespace fail_nth_test
