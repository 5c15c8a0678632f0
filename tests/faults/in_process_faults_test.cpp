/// One rank goes wrong at a random place; every other rank has to hear of it, soon and in words.
#include "zero/base/error.hpp"
#include "zero/comm/in_process.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace in_process_faults_test {
namespace {

using Clock = std::chrono::steady_clock;
using zero::Collective;
using zero::DType;
using zero::Error;
using zero::ErrorKind;
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

enum class Fault { throws, leaves, operation, count, dtype, accumulate, root, bucket, order };
constexpr int fault_count = 9;

struct Plan {
  int ranks = 0;
  int culprit = 0;
  std::size_t at = 0;
  std::size_t window = 0;  ///< collectives that ranks keep under way
  Fault fault = Fault::throws;
  std::vector<Collective> schedule;
};

Plan make_plan(unsigned seed) {
  std::mt19937 random(seed);
  auto const below = [&](std::size_t limit) { return random() % limit; };
  Plan plan;
  plan.ranks = 2 + static_cast<int>(below(7));
  plan.culprit = static_cast<int>(below(static_cast<std::size_t>(plan.ranks)));
  plan.fault = static_cast<Fault>(seed % fault_count);
  plan.window = 1 + below(4);
  std::size_t const length = 3 + below(10);
  plan.at = below(length - 1);
  constexpr std::size_t counts[] = {1, 3, 100, 3000, 20000};
  for (std::size_t i = 0; i < length; ++i) {
    Collective op;
    op.op = static_cast<Op>(below(zero::op_count));
    op.dtype = below(2) == 0 ? DType::f32 : DType::bf16;
    op.count = counts[below(5)];
    op.bucket = static_cast<int>(i);
    if (op.op == Op::broadcast) {
      op.root = static_cast<int>(below(static_cast<std::size_t>(plan.ranks)));
    }
    plan.schedule.push_back(op);
  }
  // Elements of 16 bits are summed in one type only.
  if (plan.fault == Fault::accumulate) plan.schedule[plan.at].dtype = DType::f32;
  return plan;
}

Collective tampered(Plan const& plan) {
  Collective op = plan.schedule[plan.at];
  switch (plan.fault) {
    case Fault::operation:
      op.op = op.op == Op::all_gather ? Op::all_reduce : Op::all_gather;
      op.root = 0;
      break;
    case Fault::count: op.count += 1; break;
    case Fault::dtype: op.dtype = op.dtype == DType::f32 ? DType::bf16 : DType::f32; break;
    case Fault::accumulate: op.accumulate = DType::f64; break;
    case Fault::root: op.root = op.root == 0 ? 1 : 0; break;
    case Fault::bucket: op.bucket += 1000; break;
    case Fault::order: op = plan.schedule[plan.at + 1]; break;
    case Fault::throws:
    case Fault::leaves: break;
  }
  return op;
}

struct Outcome {
  bool failed = false;
  std::string what;
  std::string operation;
  ErrorKind kind = ErrorKind::data;
  int bucket = -1;
  Clock::time_point when{};
};

/// What one rank does: keeps `window` collectives under way and waits for them in an odd order. Its
/// buffers are freed as soon as it unwinds, so a peer that still reads them is caught by ASan.
void train(InProcess& comm, Plan const& plan, Clock::time_point& fault_time) {
  bool const culprit = comm.rank() == plan.culprit;
  auto const ranks = static_cast<std::size_t>(comm.size());
  std::vector<std::vector<float>> memory;
  std::vector<InProcess::Ticket> tickets;
  for (std::size_t i = 0; i < plan.schedule.size(); ++i) {
    Collective op = plan.schedule[i];
    if (culprit && i == plan.at) {
      fault_time = Clock::now();
      if (plan.fault == Fault::throws) throw std::runtime_error("the disk is on fire");
      if (plan.fault == Fault::leaves) return;
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
  bool const disagreement = plan.fault != Fault::throws && plan.fault != Fault::leaves;
  if (rank == plan.culprit && !disagreement) return {};
  if (!outcome.failed) return "was told nothing";
  std::string const& what = outcome.what;
  if (outcome.kind != ErrorKind::communication) return "was told of another kind: " + what;
  std::string const culprit = "rank " + std::to_string(plan.culprit);
  if (!contains(what, culprit)) return "was not told who: " + what;
  if (outcome.operation.empty() || !contains(what, outcome.operation)) {
    return "was not told the operation: " + what;
  }
  if (outcome.bucket < 0 || !contains(what, "bucket " + std::to_string(outcome.bucket))) {
    return "was not told the bucket: " + what;
  }
  if (plan.fault == Fault::throws && !contains(what, "the disk is on fire")) {
    return "was not told why: " + what;
  }
  if (!disagreement) return {};
  for (Collective const& side : {plan.schedule[plan.at], tampered(plan)}) {
    std::string const size = std::to_string(side.count) + ' ' + std::string(name(side.dtype));
    std::string const bucket = "bucket " + std::to_string(side.bucket);
    if (!contains(what, name(side.op).data()) || !contains(what, size) || !contains(what, bucket)) {
      return "was not told both sides: " + what;
    }
  }
  return {};
}

/// Runs the plan and returns complaints; `slowest` is the time from the fault to the last error.
std::string run_plan(Plan const& plan, double& slowest) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(plan.ranks));
  Clock::time_point fault_time{};
  std::string rethrown;
  try {
    zero::run_ranks(plan.ranks, [&](InProcess& comm) {
      Outcome& outcome = outcomes[static_cast<std::size_t>(comm.rank())];
      try {
        train(comm, plan, fault_time);
      } catch (Error const& error) {
        outcome = {
            true, error.what(), error.operation(), error.kind(), error.bucket(), Clock::now()};
        // From now on nothing works any more.
        try {
          float x = 0;
          zero::run(comm, {.op = Op::all_reduce, .count = 1, .send = &x, .recv = &x});
          outcome.kind = ErrorKind::data;
        } catch (Error const&) {
        }
        throw;
      }
    });
  } catch (std::exception const& error) {
    rethrown = error.what();
  }
  std::string complaints;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    Outcome const& outcome = outcomes[static_cast<std::size_t>(rank)];
    std::string const text = verdict(plan, rank, outcome);
    if (!text.empty()) complaints += "rank " + std::to_string(rank) + ' ' + text + "; ";
    if (!outcome.failed) continue;
    double const seconds = std::chrono::duration<double>(outcome.when - fault_time).count();
    slowest = std::max(slowest, seconds);
  }
  if (plan.fault == Fault::throws ? rethrown != "the disk is on fire" : rethrown.empty()) {
    complaints += "run_ranks threw: " + rethrown;
  }
  return complaints;
}

TEST_CASE("InProcess: random faults, an error on every rank, never a hang") {
  Watchdog watchdog(60);
  double slowest = 0;
  int bad = 0;
  for (unsigned seed = 0; seed < fault_runs; ++seed) {
    Plan const plan = make_plan(seed);
    double seconds = 0;
    std::string const complaints = run_plan(plan, seconds);
    watchdog.feed();
    slowest = std::max(slowest, seconds);
    if (complaints.empty()) continue;
    if (++bad <= 5) {
      FAIL_CHECK("seed ", seed, ", fault ", static_cast<int>(plan.fault), ": ", complaints);
    }
  }
  CHECK(bad == 0);
  CHECK(slowest < allowed_s);
  MESSAGE("the slowest rank heard of a fault after ", slowest * 1000, " ms");
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
