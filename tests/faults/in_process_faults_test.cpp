/// One rank goes wrong at a random place; every other rank has to hear of it, soon and in words.
#include "faults/fault_run.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace in_process_faults_test {
namespace {

using faults::Clock;
using faults::contains;
using faults::Fault;
using zero::Collective;
using zero::Error;
using zero::InProcess;
using zero::Op;

#if defined(__SANITIZE_THREAD__)
constexpr double allowed_s = 3;
constexpr unsigned fault_runs = 300;
#else
constexpr double allowed_s = 0.5;
constexpr unsigned fault_runs = 1000;
#endif

/// Aborts the process if nothing is heard from the test for too long: a hang must not pass for a
/// slow test.
class Watchdog {
 public:
  explicit Watchdog(int seconds) : thread_([this, seconds] { watch(seconds); }) {}
  ~Watchdog() {
    {
      std::lock_guard const lock(mutex_);
      done_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  void feed() {
    std::lock_guard const lock(mutex_);
    ++fed_;
  }

 private:
  void watch(int seconds) {
    std::unique_lock lock(mutex_);
    while (!done_) {
      int const before = fed_;
      if (wake_.wait_for(lock, std::chrono::seconds(seconds), [&] { return done_; })) return;
      if (fed_ != before) continue;
      std::fputs("a fault run hangs\n", stderr);
      std::abort();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  int fed_ = 0;
  std::thread thread_;
};

constexpr Fault fault_kinds[] = {Fault::throws,
                                 Fault::leaves,
                                 Fault::operation,
                                 Fault::count,
                                 Fault::dtype,
                                 Fault::accumulate,
                                 Fault::root,
                                 Fault::bucket,
                                 Fault::order};

faults::Report run_plan(faults::Plan const& plan) {
  faults::Run run(plan);
  std::string rethrown;
  try {
    zero::run_ranks(plan.ranks, [&](InProcess& comm) { run.train(comm); });
  } catch (std::exception const& error) {
    rethrown = error.what();
  }
  faults::Report report = run.judge([&](int, faults::Outcome const& outcome) {
    return faults::gap_among_threads(plan, outcome);
  });
  if (plan.fault == Fault::throws ? rethrown != faults::reason : rethrown.empty()) {
    report.complaints += "run_ranks threw: " + rethrown;
  }
  return report;
}

TEST_CASE("InProcess: random faults, an error on every rank, never a hang") {
  Watchdog watchdog(60);
  faults::Tally tally;
  for (unsigned seed = 0; seed < fault_runs; ++seed) {
    std::mt19937 random(seed);
    Fault const fault = fault_kinds[seed % std::size(fault_kinds)];
    tally.add(seed, fault, run_plan(faults::make_plan(random, fault, 8)));
    watchdog.feed();
  }
  tally.check(allowed_s);
}

TEST_CASE("InProcess: a rank that does not arrive is named after the deadline, and fails later") {
  Watchdog watchdog(60);
  std::vector<std::string> what(3);
  auto const start = Clock::now();
  auto const body = [&](InProcess& comm) {
    float x = 1;
    bool const late = comm.rank() == 1;
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    try {
      zero::run(comm, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x, .bucket = 4});
    } catch (Error const& error) {
      what[static_cast<std::size_t>(comm.rank())] = error.what();
      double const waited = std::chrono::duration<double>(Clock::now() - start).count();
      if (!late && (waited < 0.3 || waited > 0.3 + allowed_s)) throw std::runtime_error("bad time");
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(3, body, {.deadline_s = 0.3}), Error);
  for (std::string const& text : what) {
    CHECK_MESSAGE(contains(text, "rank 1 did not arrive within 0.3"), text);
    CHECK_MESSAGE(contains(text, "bucket 4"), text);
    CHECK_MESSAGE(contains(text, "all_reduce"), text);
  }
}

TEST_CASE("InProcess: a fault in a sub-group ends every group of the family") {
  Watchdog watchdog(60);
  std::vector<std::string> what(4);
  auto const body = [&](InProcess& comm) {
    // Ranks 0 and 1 disagree in their half; 2 and 3 agree in theirs and then wait for everybody.
    float x[2] = {1, 2};
    std::size_t const count = comm.rank() == 1 ? 2 : 1;
    try {
      InProcess half = comm.split(comm.rank() / 2, 0);
      Collective op{.op = Op::all_reduce, .count = count, .send = x, .recv = x, .bucket = 9};
      zero::run(half, op);
      op.bucket = 3;
      zero::run(comm, op);
    } catch (Error const& error) {
      what[static_cast<std::size_t>(comm.rank())] = error.message();
      throw;
    }
  };
  CHECK_THROWS_AS(zero::run_ranks(4, body), Error);
  for (std::string const& text : what) {
    CHECK_MESSAGE(contains(text, "they differ in count"), text);
    CHECK_MESSAGE(contains(text, "bucket 9"), text);
  }
}

TEST_CASE("InProcess: an exception that unwinds through a sub-group reaches peers with its text") {
  Watchdog watchdog(60);
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<std::string> what(4);
    auto const work = [](InProcess& comm) {
      InProcess half = comm.split(comm.rank() / 2, 0);
      std::vector<float> x(50000, 1.0f);
      Collective const big{
          .op = Op::all_reduce, .count = x.size(), .send = x.data(), .recv = x.data(), .bucket = 5};
      auto ticket = half.start(big);
      if (comm.rank() == 2) throw std::runtime_error("the disk is on fire");
      half.wait(ticket);
      float y = 0;
      Collective const small{.op = Op::all_reduce, .count = 1, .send = &y, .recv = &y, .bucket = 6};
      for (int i = 0; i < 3; ++i) {
        zero::run(half, small);
        zero::run(comm, small);
      }
    };
    auto const body = [&](InProcess& comm) {
      try {
        work(comm);
      } catch (Error const& error) {
        what[static_cast<std::size_t>(comm.rank())] = error.what();
        throw;
      }
    };
    CHECK_THROWS_WITH_AS(zero::run_ranks(4, body), "the disk is on fire", std::runtime_error);
    for (std::size_t const rank : {0u, 1u, 3u}) {
      CHECK_MESSAGE(contains(what[rank], "rank 2 failed: the disk is on fire"), what[rank]);
    }
  }
}

TEST_CASE("InProcess: buffers may be freed as soon as wait has thrown, before the ticket") {
  Watchdog watchdog(60);
  for (int repeat = 0; repeat < 30; ++repeat) {
    auto const body = [&](InProcess& comm) {
      InProcess::Ticket ticket;
      std::vector<float> x(600'000, 1.0f);
      ticket = comm.start({.op = Op::all_reduce,
                           .count = x.size(),
                           .send = x.data(),
                           .recv = x.data(),
                           .bucket = 1});
      if (comm.rank() == 0) comm.report_failure("the disk is on fire");
      comm.wait(ticket);
      // Ranks that were through before the failure meet it here.
      zero::run(comm, {.op = Op::all_gather, .bucket = 2});
    };
    CHECK_THROWS_AS(zero::run_ranks(4, body), Error);
  }
}

}  // namespace
}  // namespace in_process_faults_test
