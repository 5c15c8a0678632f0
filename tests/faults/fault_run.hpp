/// @file
/// Runs in which one rank goes wrong at a random place: what is planned, what the ranks do, what
/// each of them is told, and how soon.
#pragma once

#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/concepts/communicator.hpp"

namespace faults {

using Clock = std::chrono::steady_clock;

/// How a rank goes wrong.
enum class Fault {
  throws,
  leaves,
  operation,  ///< from here to `order` it asks for something else than its peers
  count,
  dtype,
  accumulate,
  root,
  bucket,
  order,
  skips,         ///< it goes on with the next collective
  abandons,      ///< it drops a ticket
  hangs,         ///< its library never runs the collective
  remote_error,  ///< its library reports an error
};

/// Whether ranks post collectives that differ, which a library may see at once.
[[nodiscard]] inline bool is_disagreement(Fault fault) {
  return fault >= Fault::operation && fault <= Fault::order;
}

/// What a rank that throws says.
inline constexpr char const* reason = "the disk is on fire";

[[nodiscard]] inline bool contains(std::string const& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

/// Collectives that all ranks run, and who goes wrong where.
struct Plan {
  Fault fault = Fault::throws;
  int ranks = 0;
  int culprit = 0;
  std::size_t at = 0;
  std::size_t window = 0;  ///< collectives that ranks keep under way
  std::vector<zero::Collective> schedule{};

  /// What the culprit posts instead of `schedule[at]`.
  [[nodiscard]] zero::Collective tampered() const {
    using zero::DType;
    using zero::Op;
    zero::Collective op = schedule[at];
    switch (fault) {
      case Fault::operation:
        op.op = op.op == Op::all_gather ? Op::all_reduce : Op::all_gather;
        op.root = 0;
        break;
      case Fault::count: op.count += 1; break;
      case Fault::dtype: op.dtype = op.dtype == DType::f32 ? DType::bf16 : DType::f32; break;
      case Fault::accumulate: op.accumulate = DType::f64; break;
      case Fault::root: op.root = op.root == 0 ? 1 : 0; break;
      case Fault::bucket: op.bucket += 1000; break;
      case Fault::order: op = schedule[at + 1]; break;
      case Fault::throws:
      case Fault::leaves:
      case Fault::skips:
      case Fault::abandons:
      case Fault::hangs:
      case Fault::remote_error: break;
    }
    return op;
  }
};

/// A random plan for 2 to `most` ranks.
[[nodiscard]] inline Plan make_plan(std::mt19937& random, Fault fault, std::size_t most) {
  auto const below = [&](std::size_t limit) { return random() % limit; };
  Plan plan;
  plan.fault = fault;
  plan.ranks = 2 + static_cast<int>(below(most - 1));
  auto const any_rank = [&] { return static_cast<int>(below(static_cast<unsigned>(plan.ranks))); };
  plan.culprit = any_rank();
  plan.window = 1 + below(4);
  std::size_t const length = 3 + below(10);
  plan.at = below(length - 1);
  constexpr std::size_t counts[] = {1, 3, 100, 3000, 20000};
  for (std::size_t i = 0; i < length; ++i) {
    zero::Collective op;
    op.op = static_cast<zero::Op>(below(zero::op_count));
    op.dtype = below(2) == 0 ? zero::DType::f32 : zero::DType::bf16;
    op.count = counts[below(5)];
    op.bucket = static_cast<int>(i);
    if (op.op == zero::Op::broadcast) op.root = any_rank();
    plan.schedule.push_back(op);
  }
  // Elements of 16 bits are summed in one type only.
  if (fault == Fault::accumulate) plan.schedule[plan.at].dtype = zero::DType::f32;
  return plan;
}

/// What one rank was told.
struct Outcome {
  Outcome() = default;
  explicit Outcome(zero::Error const& error)
      : failed(true),
        kind(error.kind()),
        rank(error.rank()),
        bucket(error.bucket()),
        operation(error.operation()),
        group(error.group()),
        message(error.message()),
        what(error.what()),
        when(Clock::now()) {}

  bool failed = false;
  zero::ErrorKind kind = zero::ErrorKind::data;
  int rank = -1;
  int bucket = -1;
  std::string operation{};
  std::string group{};
  std::string message{};
  std::string what{};
  std::string again{};  ///< message of the next call; empty if that went through
  Clock::time_point when{};
};

/// What every rank of a group of threads was told, and what `run_ranks` threw in the end.
struct Told {
  std::vector<Outcome> ranks;
  std::string thrown{};
};

/// Calls `body(comm)` on every rank of a group of threads.
template <class C, class Body>
[[nodiscard]] Told hear(std::vector<C> group, Body const& body) {
  Told told{std::vector<Outcome>(group.size())};
  try {
    zero::run_ranks(std::move(group), [&](C& comm) {
      try {
        body(comm);
      } catch (zero::Error const& error) {
        told.ranks[static_cast<std::size_t>(comm.rank())] = Outcome(error);
        throw;
      }
    });
  } catch (std::exception const& error) {
    told.thrown = error.what();
  }
  return told;
}

/// Empty, or what any error of a collective has to say and this one does not.
[[nodiscard]] inline std::string gap(Outcome const& outcome) {
  std::string const& what = outcome.what;
  if (!outcome.failed) return "was told nothing";
  if (outcome.kind != zero::ErrorKind::communication) return "was told of another kind: " + what;
  if (outcome.operation.empty() || !contains(what, outcome.operation)) {
    return "was not told the operation: " + what;
  }
  if (outcome.bucket < 0 || !contains(what, "bucket " + std::to_string(outcome.bucket))) {
    return "was not told the bucket: " + what;
  }
  if (outcome.again.empty()) return "could go on after: " + what;
  return {};
}

/// As `gap`, where ranks see each other: who, why, and both sides of a disagreement.
[[nodiscard]] inline std::string gap_among_threads(Plan const& plan, Outcome const& outcome) {
  if (std::string text = gap(outcome); !text.empty()) return text;
  std::string const& what = outcome.what;
  if (!contains(what, "rank " + std::to_string(plan.culprit))) return "was not told who: " + what;
  if (plan.fault == Fault::throws && !contains(what, reason)) return "was not told why: " + what;
  if (!is_disagreement(plan.fault)) return {};
  for (zero::Collective const& side : {plan.schedule[plan.at], plan.tampered()}) {
    std::string const size = std::to_string(side.count) + ' ' + std::string(name(side.dtype));
    std::string const bucket = "bucket " + std::to_string(side.bucket);
    if (!contains(what, name(side.op)) || !contains(what, size) || !contains(what, bucket)) {
      return "was not told both sides: " + what;
    }
  }
  return {};
}

/// What is wrong with a run, and the seconds from the fault to the last error.
struct Report {
  std::string complaints{};
  double seconds = 0;
};

/// One run of a plan.
class Run {
 public:
  explicit Run(Plan const& plan)
      : plan_(plan), outcomes_(static_cast<std::size_t>(plan.ranks)), fault_time_(Clock::now()) {}

  /// The part of one rank, which notes and rethrows the Error it is told. `end(comm)` is called by
  /// ranks that come to the end, while all buffers are there.
  template <class Comm, class End>
  void train(Comm& comm, End const& end) {
    try {
      work(comm, end);
    } catch (zero::Error const& error) {
      Outcome& outcome = outcomes_[static_cast<std::size_t>(comm.rank())];
      outcome = Outcome(error);
      // From now on nothing works any more.
      try {
        float x = 0;
        zero::run(comm, {.op = zero::Op::all_reduce, .count = 1, .send = &x, .recv = &x});
      } catch (zero::Error const& later) {
        outcome.again = later.message();
      }
      throw;
    }
  }
  template <class Comm>
  void train(Comm& comm) {
    train(comm, [](Comm&) {});
  }

  /// Asks `verdict(rank, outcome)` what is wrong with what a rank was told; who left on purpose or
  /// went on without its peers need not be told anything.
  template <class Verdict>
  [[nodiscard]] Report judge(Verdict const& verdict) const {
    bool const excused =
        plan_.fault == Fault::throws || plan_.fault == Fault::leaves || plan_.fault == Fault::skips;
    Report report;
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      Outcome const& outcome = outcomes_[static_cast<std::size_t>(rank)];
      std::string text;
      if (rank != plan_.culprit || !excused) text = verdict(rank, outcome);
      if (!text.empty()) report.complaints += "rank " + std::to_string(rank) + ' ' + text + "; ";
      if (!outcome.failed) continue;
      std::chrono::duration<double> const passed = outcome.when - fault_time_;
      report.seconds = std::max(report.seconds, passed.count());
    }
    return report;
  }

 private:
  /// Keeps `window` collectives under way and waits for them in an odd order. The buffers are freed
  /// as soon as it unwinds, so a peer that still reads them is caught by ASan.
  template <class Comm, class End>
  void work(Comm& comm, End const& end) {
    auto const ranks = static_cast<std::size_t>(comm.size());
    std::vector<std::vector<float>> memory;
    std::vector<typename Comm::Ticket> tickets;
    for (std::size_t i = 0; i < plan_.schedule.size(); ++i) {
      zero::Collective op = plan_.schedule[i];
      bool const goes_wrong = comm.rank() == plan_.culprit && i == plan_.at;
      if (goes_wrong) {
        fault_time_ = Clock::now();
        if (plan_.fault == Fault::throws) throw std::runtime_error(reason);
        if (plan_.fault == Fault::leaves) return;
        if (plan_.fault == Fault::skips) continue;
        op = plan_.tampered();
      }
      memory.emplace_back(op.count * ranks + 8, 1.0f);
      op.send = memory.back().data();
      memory.emplace_back(op.count * ranks + 8);
      op.recv = memory.back().data();
      tickets.push_back(comm.start(op));
      if (goes_wrong && plan_.fault == Fault::abandons) tickets.pop_back();
      if (tickets.size() < plan_.window) continue;
      std::size_t const chosen = (i + static_cast<std::size_t>(comm.rank())) % tickets.size();
      comm.wait(tickets[chosen]);
      tickets.erase(tickets.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    for (auto& ticket : tickets) comm.wait(ticket);
    end(comm);
  }

  Plan const& plan_;
  std::vector<Outcome> outcomes_;
  Clock::time_point fault_time_;
};

/// All runs of a test.
class Tally {
 public:
  /// Several threads may add what they saw.
  void add(unsigned seed, Fault fault, Report const& report) {
    std::lock_guard const lock(mutex_);
    seconds_.push_back(report.seconds);
    if (report.complaints.empty() || ++bad_ > 5) return;
    complaints_.push_back("seed " + std::to_string(seed) + ", fault " +
                          std::to_string(static_cast<int>(fault)) + ": " + report.complaints);
  }
  /// Fails the test case for every complaint, and if errors came too late.
  /// @param usual_s  half of the runs are as fast
  /// @param most_s   all are
  void check(double usual_s, double most_s) {
    for (std::string const& text : complaints_) FAIL_CHECK(text);
    CHECK(bad_ == 0);
    REQUIRE(!seconds_.empty());
    std::sort(seconds_.begin(), seconds_.end());
    double const median = seconds_[seconds_.size() / 2];
    CHECK(median < usual_s);
    CHECK(seconds_.back() < most_s);
    MESSAGE("the last rank heard of a fault after ",
            median * 1000,
            " ms in half of the runs, ",
            seconds_.back() * 1000,
            " ms in all");
  }

 private:
  std::mutex mutex_;
  std::vector<double> seconds_;  ///< until the last rank heard, of each run
  int bad_ = 0;
  std::vector<std::string> complaints_;
};

}  // namespace faults
