/// One rank goes wrong at a random place; every other rank has to hear of it, soon and in words.
#include "faults/fault_run.hpp"
#include "nccl/world.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"

namespace faults_test {
namespace {

using faults::contains;
using faults::Fault;
using zero::Error;
using Comm = fake::Nccl<>;

#if defined(__SANITIZE_THREAD__)
// Construction has to keep it as well, at a tenth of the speed.
constexpr double deadline_s = 0.25;
constexpr double allowed_s = 5;
constexpr unsigned fault_runs = 200;
#else
constexpr double deadline_s = 0.05;
constexpr double allowed_s = 1;
constexpr unsigned fault_runs = 1000;
#endif

constexpr Fault fault_kinds[] = {Fault::throws,
                                 Fault::leaves,
                                 Fault::hangs,
                                 Fault::remote_error,
                                 Fault::operation,
                                 Fault::count,
                                 Fault::dtype,
                                 Fault::skips};

struct Plan : faults::Plan {
  bool spread = false;   ///< NCCL tells peers of an abort
  bool watched = false;  ///< a thread looks as well
  int in_progress = 0;   ///< polls that every nonblocking call takes
};

Plan make_plan(unsigned seed) {
  std::mt19937 random(seed);
  Fault const fault = fault_kinds[seed % std::size(fault_kinds)];
  Plan plan{faults::make_plan(random, fault, 5)};
  plan.spread = random() % 4 != 0;
  plan.watched = random() % 3 == 0;
  plan.in_progress = static_cast<int>(random() % 3);
  return plan;
}

/// Empty, or what is wrong with what a rank was told.
std::string verdict(int rank, faults::Outcome const& outcome) {
  if (std::string text = faults::gap(outcome); !text.empty()) return text;
  std::string const& what = outcome.what;
  if (outcome.rank != rank || !contains(what, "rank " + std::to_string(rank))) {
    return "was not told its rank: " + what;
  }
  std::string const waited = zero::Message({deadline_s, " s"}).text();
  if (!contains(what, waited) && !contains(what, "remote error")) {
    return "was told neither how long nor why: " + what;
  }
  std::string const again = "zero: communication: " + outcome.again;
  if (!what.starts_with(again)) return "was told something else later: " + again + " after " + what;
  return {};
}

/// Counts in `built_late` when the machine was so busy that the deadline had passed before anything
/// was done.
faults::Report run_plan(Plan const& plan, unsigned seed, std::atomic<int>& built_late) {
  std::atomic<int> arrived{0};
  std::atomic<int> unbuilt{0};
  fake::World world(plan.ranks, seed);
  world.errors_spread = plan.spread;
  fake::Script& script = world.process(plan.culprit).script;
  // Launch 0 is the constructor's.
  if (plan.fault == Fault::hangs) script.hang_at = static_cast<long>(plan.at) + 1;
  if (plan.fault == Fault::remote_error) script.remote_error_at = static_cast<long>(plan.at) + 1;
  faults::Run run(plan);
  auto const body = [&](fake::Process& process) {
    process.script.in_progress = plan.in_progress;
    auto const options =
        fake::quick_options({.deadline_s = deadline_s, .watch_s = plan.watched ? 0.003 : 0});
    fake::Stream* const compute = fake::world_stream(world, process);
    std::optional<Comm> comm;
    try {
      comm.emplace(zero::nccl::NewGroup<fake::Library>{{1}, process.rank, plan.ranks, compute},
                   options);
    } catch (Error const&) {
      ++unbuilt;
    }
    // Nobody fails before all have come: an error of the constructor has no bucket.
    ++arrived;
    while (arrived != plan.ranks) std::this_thread::yield();
    if (unbuilt != 0) return;
    try {
      run.train(*comm);
    } catch (Error const&) {
    }
  };
  try {
    fake::run_processes(world, body);
  } catch (std::runtime_error const&) {
    // The culprit's own.
  }
  if (unbuilt != 0) {
    ++built_late;
    return {.complaints = world.violations()};
  }
  faults::Report report = run.judge(verdict);
  report.complaints += world.violations();
  if (world.live_memory != 0 || world.live_events != 0 || world.live_streams != 0) {
    report.complaints += "something was left behind; ";
  }
  return report;
}

TEST_CASE("Nccl: random faults, an error on every rank, never a hang") {
  // Most of a run is waiting for the deadline, so several go on at once.
  constexpr unsigned workers = 4;
  faults::Tally tally;
  std::atomic<int> built_late{0};
  std::vector<std::thread> threads;
  for (unsigned worker = 0; worker < workers; ++worker) {
    threads.emplace_back([&, worker] {
      for (unsigned seed = worker; seed < fault_runs; seed += workers) {
        Plan const plan = make_plan(seed);
        tally.add(seed, plan.fault, run_plan(plan, seed, built_late));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(built_late < static_cast<int>(fault_runs / 10));
  tally.check(deadline_s + 0.2, deadline_s + allowed_s);
}

}  // namespace
}  // namespace faults_test
