/// One rank goes wrong at a random place; every other rank has to hear of it, soon and in words.
#include "nccl/world.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using zero::Collective;
using zero::DType;
using zero::Error;
using zero::ErrorKind;
using zero::Op;
using zero::nccl::Options;
using Comm = fake::Nccl<>;

constexpr double deadline_s = 0.05;
#if defined(__SANITIZE_THREAD__)
constexpr double allowed_s = 5;
constexpr unsigned fault_runs = 200;
#else
constexpr double allowed_s = 1;
constexpr unsigned fault_runs = 1000;
#endif

enum class Fault { throws, leaves, hangs, remote_error, operation, count, dtype, skips };
constexpr int fault_count = 8;

struct Plan {
  int ranks = 0;
  int culprit = 0;
  std::size_t at = 0;
  std::size_t window = 0;  ///< collectives that ranks keep under way
  Fault fault = Fault::throws;
  bool spread = false;   ///< NCCL tells peers of an abort
  bool watched = false;  ///< a thread looks as well
  std::vector<Collective> schedule{};
};

Plan make_plan(unsigned seed) {
  std::mt19937 random(seed);
  auto const below = [&](std::size_t limit) { return random() % limit; };
  Plan plan;
  plan.ranks = 2 + static_cast<int>(below(4));
  plan.culprit = static_cast<int>(below(static_cast<std::size_t>(plan.ranks)));
  plan.fault = static_cast<Fault>(seed % fault_count);
  plan.window = 1 + below(4);
  plan.spread = below(4) != 0;
  plan.watched = below(3) == 0;
  std::size_t const length = 3 + below(10);
  plan.at = below(length - 1);
  constexpr std::size_t counts[] = {1, 3, 100, 3000, 20000};
  for (std::size_t i = 0; i < length; ++i) {
    Collective op;
    op.op = static_cast<Op>(below(zero::op_count));
    op.dtype = below(2) == 0 ? DType::f32 : DType::bf16;
    op.count = counts[below(5)];
    op.bucket = static_cast<int>(i);
    plan.schedule.push_back(op);
  }
  return plan;
}

Collective tampered(Plan const& plan) {
  Collective op = plan.schedule[plan.at];
  if (plan.fault == Fault::operation) {
    op.op = op.op == Op::all_gather ? Op::all_reduce : Op::all_gather;
  }
  if (plan.fault == Fault::count) op.count += 5;
  if (plan.fault == Fault::dtype) op.dtype = op.dtype == DType::f32 ? DType::bf16 : DType::f32;
  return op;
}

struct Outcome {
  bool failed = false;
  std::string what{};
  std::string again{};
  std::string operation{};
  ErrorKind kind = ErrorKind::data;
  int rank = -1;
  int bucket = -1;
  Clock::time_point when{};
};

void train(Comm& comm, Plan const& plan, Clock::time_point& fault_time) {
  bool const culprit = comm.rank() == plan.culprit;
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::vector<float>> memory;
  std::vector<Comm::Ticket> tickets;
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    Collective op = plan.schedule[i];
    if (culprit && i == plan.at) {
      fault_time = Clock::now();
      if (plan.fault == Fault::throws) throw std::runtime_error("the disk is on fire");
      if (plan.fault == Fault::leaves) return;
      if (plan.fault == Fault::skips) continue;
      op = tampered(plan);
    }
    memory.emplace_back(op.count * ranks + 8, 1.0f);
    op.send = memory.back().data();
    memory.emplace_back(op.count * ranks + 8);
    op.recv = memory.back().data();
    tickets.push_back(comm.start(op));
    if (tickets.size() < plan.window) continue;
    std::size_t const chosen = (i + static_cast<std::size_t>(comm.rank())) % tickets.size();
    comm.wait(tickets[chosen]);
    tickets.erase(tickets.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  for (auto& ticket : tickets) comm.wait(ticket);
}

bool contains(std::string const& text, std::string const& part) {
  return text.find(part) != std::string::npos;
}

/// Empty, or what is wrong with what a rank was told.
std::string verdict(Plan const& plan, int rank, Outcome const& outcome) {
  bool const gone = plan.fault == Fault::throws || plan.fault == Fault::leaves;
  if (rank == plan.culprit && (gone || plan.fault == Fault::skips)) return {};
  std::string const& what = outcome.what;
  if (!outcome.failed) return "was told nothing";
  if (outcome.kind != ErrorKind::communication) return "was told of another kind: " + what;
  if (outcome.rank != rank || !contains(what, "rank " + std::to_string(rank))) {
    return "was not told its rank: " + what;
  }
  if (outcome.operation.empty() || !contains(what, outcome.operation)) {
    return "was not told the operation: " + what;
  }
  if (outcome.bucket < 0 || !contains(what, "bucket " + std::to_string(outcome.bucket))) {
    return "was not told the bucket: " + what;
  }
  if (!contains(what, "0.05") && !contains(what, "remote error")) {
    return "was told neither how long nor why: " + what;
  }
  if (outcome.again != what.substr(0, outcome.again.size())) {
    return "was told something else later: " + outcome.again + " after " + what;
  }
  return {};
}

/// Runs the plan and returns complaints; `slowest` is the time from the fault to the last error.
std::string run_plan(Plan const& plan, unsigned seed, double& slowest, int& built_late) {
  std::atomic<int> arrived{0};
  std::atomic<int> unbuilt{0};
  fake::World world(plan.ranks, seed);
  world.errors_spread = plan.spread;
  fake::Script& script = world.process(plan.culprit).script;
  // Launch 0 is the constructor's.
  if (plan.fault == Fault::hangs) script.hang_at = static_cast<long>(plan.at) + 1;
  if (plan.fault == Fault::remote_error) script.remote_error_at = static_cast<long>(plan.at) + 1;
  std::vector<Outcome> outcomes(static_cast<std::size_t>(plan.ranks));
  Clock::time_point fault_time = Clock::now();
  fake::run_processes(world, plan.ranks, [&](fake::Process& process) {
    process.script.in_progress = static_cast<int>(seed / 8 % 3);
    Options options = fake::quick_options();
    options.watch_s = plan.watched ? 0.003 : 0;
    Outcome& outcome = outcomes[static_cast<std::size_t>(process.rank)];
    fake::Stream* const compute = fake::world_stream(world, process);
    options.deadline_s = deadline_s;
    try {
      std::optional<Comm> built;
      try {
        built.emplace(zero::nccl::NewGroup<fake::Library>{{1}, process.rank, plan.ranks, compute},
                      options);
      } catch (Error const&) {
        ++unbuilt;
      }
      // Nobody fails before all have come: an error of the constructor has no bucket.
      ++arrived;
      while (arrived != plan.ranks) std::this_thread::yield();
      if (unbuilt != 0) return;
      Comm& comm = *built;
      try {
        train(comm, plan, fault_time);
      } catch (Error const& error) {
        outcome = {.failed = true,
                   .what = error.what(),
                   .operation = error.operation(),
                   .kind = error.kind(),
                   .rank = error.rank(),
                   .bucket = error.bucket(),
                   .when = Clock::now()};
        // From now on nothing works any more, for the same reason.
        try {
          float x = 0;
          zero::run(comm, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x});
        } catch (Error const& later) {
          outcome.again = "zero: communication: " + later.message();
        }
        if (outcome.again.empty()) outcome.kind = ErrorKind::data;
      }
    } catch (std::runtime_error const&) {
    }
  });
  std::string complaints = world.violations();
  if (unbuilt != 0) {
    // A machine so busy that the deadline has passed before anything was done.
    ++built_late;
    return complaints;
  }
  for (int rank = 0; rank < plan.ranks; ++rank) {
    Outcome const& outcome = outcomes[static_cast<std::size_t>(rank)];
    std::string const text = verdict(plan, rank, outcome);
    if (!text.empty()) complaints += "rank " + std::to_string(rank) + ' ' + text + "; ";
    if (!outcome.failed) continue;
    double const seconds = std::chrono::duration<double>(outcome.when - fault_time).count();
    slowest = std::max(slowest, seconds);
  }
  if (world.live_memory != 0 || world.live_events != 0 || world.live_streams != 0) {
    complaints += "something was left behind; ";
  }
  return complaints;
}

struct Tally {
  std::mutex mutex{};
  double slowest = 0;
  int bad = 0;
  int built_late = 0;
  std::vector<std::string> complaints{};
};

/// Most of a run is waiting for the deadline, so several go on at once.
void run_plans(unsigned first, unsigned step, Tally& tally) {
  for (unsigned seed = first; seed < fault_runs; seed += step) {
    Plan const plan = make_plan(seed);
    double seconds = 0;
    int built_late = 0;
    std::string const complaints = run_plan(plan, seed, seconds, built_late);
    std::lock_guard const lock(tally.mutex);
    tally.slowest = std::max(tally.slowest, seconds);
    tally.built_late += built_late;
    if (complaints.empty() || ++tally.bad > 5) continue;
    tally.complaints.push_back("seed " + std::to_string(seed) + ", fault " +
                               std::to_string(static_cast<int>(plan.fault)) + ": " + complaints);
  }
}

TEST_CASE("Nccl: random faults, an error on every rank, never a hang") {
  constexpr unsigned workers = 4;
  Tally tally;
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&tally, worker] { run_plans(worker, workers, tally); });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::string const& text : tally.complaints) FAIL_CHECK(text);
  CHECK(tally.bad == 0);
  CHECK(tally.built_late < static_cast<int>(fault_runs / 10));
  CHECK(tally.slowest < deadline_s + allowed_s);
  MESSAGE("the slowest rank heard of a fault after ", tally.slowest * 1000, " ms");
}

}  // namespace
}  // namespace faults_test
