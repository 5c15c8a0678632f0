/// @file
/// Benches every collective of a communicator: a whole program in a line, around Google Benchmark.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/bench/cases.hpp"
#include "zero/bench/measure.hpp"
#include "zero/bench/program.hpp"
#include "zero/concepts/communicator.hpp"

#include <benchmark/benchmark.h>

#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::bench {

namespace detail {

/// A group at a time, of ranks that are threads; it stays while its size is asked for. Rank 0 takes
/// cases from the thread of Google Benchmark, and hands back what its group has found.
template <class Launch>
class Groups {
 public:
  explicit Groups(Launch const& launch) : launch_(launch) {}
  Groups(Groups const&) = delete;
  Groups& operator=(Groups const&) = delete;
  ~Groups() { dismiss(); }

  /// A round of a group of so many ranks. @throws what its rank 0, or the launcher, threw
  Round ask(Case const& work, int ranks) {
    if (ranks != ranks_) {
      dismiss();
      ranks_ = ranks;
      thread_ = std::thread([this] { run(); });
    }
    std::unique_lock lock(mutex_);
    answer_.reset();
    order(work);
    changed_.wait(lock, [&] { return answer_ || left_; });
    if (answer_) return *answer_;
    if (error_ != nullptr) std::rethrow_exception(error_);
    fail(ErrorKind::invalid_argument, "the launcher returned before its ranks had run their body");
  }

 private:
  void order(Case const& work) {
    order_ = work;
    changed_.notify_all();
  }
  void dismiss() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard const lock(mutex_);
      order({.iterations = 0});
    }
    thread_.join();
    order_.reset();
    left_ = false;
  }

  /// The group's thread.
  void run() {
    std::exception_ptr error;
    try {
      launch_(ranks_, [this](auto& comm, auto&&... raw) {
        Rank rank(comm, raw...);
        if (comm.rank() == 0) {
          this->lead(rank);  // clang 14 sees no use of this otherwise
        } else {
          rank.serve();
        }
      });
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard const lock(mutex_);
    left_ = true;
    error_ = error;
    changed_.notify_all();
  }
  template <class Rank>
  void lead(Rank& rank) {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return order_.has_value(); });
      Case const work = *std::exchange(order_, std::nullopt);
      lock.unlock();
      if (work.iterations == 0) return rank.dismiss(0);
      Round const found = rank.ask(work);
      lock.lock();
      answer_ = found;
      changed_.notify_all();
    }
  }

  Launch const& launch_;
  int ranks_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Case> order_;
  std::optional<Round> answer_;
  bool left_ = false;  ///< nobody answers any more
  std::exception_ptr error_;
};

/// The program: one benchmark a case, whose repetitions are rounds.
/// @param ask  measures a round
/// @return main's
/// @throws what `ask` throws
inline int run_collectives(int argc,
                           char** argv,
                           CollectiveCases const& cases,
                           std::function<Round(Case const&, int ranks)> const& ask) {
  bool wrong = false;
  auto const measure = [&](benchmark::State& state, Case work, int ranks) {
    work.iterations = state.max_iterations;
    Round found;
    while (state.KeepRunningBatch(work.iterations)) {
      found = ask(work, ranks);
      state.SetIterationTime(found.seconds * static_cast<double>(work.iterations));
    }
    double const algbw = static_cast<double>(found.bytes) / found.seconds * 1e-9;
    state.SetLabel("raw: " + std::string(found.raw));
    state.counters["count"] = static_cast<double>(found.count);
    state.counters["algbw"] = algbw;
    state.counters["busbw"] = algbw * bus_factor(work.op, ranks);
    state.counters["raw_algbw"] = algbw * found.seconds / found.raw_seconds;
    state.counters["vs_raw"] = found.raw_seconds / found.seconds;
    if (found.wrong == 0) return;  // whose coefficient of variation is no number
    state.counters["wrong"] = static_cast<double>(found.wrong);
    wrong = true;
  };
  int const status = run_program(argc, argv, [&](auto const& add) {
    auto const all = list(cases);
    for (int const ranks : cases.ranks) {
      for (Case const& work : all) {
        add("collective/" + std::string(name(work.op)) + "/" + std::string(name(work.dtype)) +
                (work.in_place ? "/in_place" : "/out_of_place") +
                "/bytes:" + std::to_string(work.bytes) + "/ranks:" + std::to_string(ranks),
            benchmark::kMicrosecond,
            [&measure, work, ranks](benchmark::State& state) { measure(state, work, ranks); });
      }
    }
  });
  if (wrong) std::fprintf(stderr, "%s: some results are wrong\n", argv[0]);
  return wrong ? 1 : status;
}

}  // namespace detail

/// A whole program for ranks that are threads of this process: takes Google Benchmark's options,
/// measures, prints.
///
/// `launch(ranks, body)` runs a group of so many ranks and returns when all have ended; each rank
/// calls `body(comm)`, or `body(comm, raw)` with a baseline, or `body(comm, raw, allocator)` with
/// an allocator of memory in the communicator's space. It is called once for each size of group, on
/// a thread of its own.
///
/// A baseline is what one would do without the library: called as raw(comm, op) on all ranks, out
/// of place, with buffers of the larger one's size. Its `name` is a static member. If it has
/// prepare(comm, op), that is called before, and no rank goes on until all have done so. Without
/// one it is a copy of the larger buffer.
///
///     int main(int argc, char** argv) {
///       return zero::bench::collectives(argc, argv, [](int ranks, auto body) {
///         zero::run_ranks(ranks, [&](zero::InProcess& comm) { body(comm); });
///       });
///     }
///
/// @param argc    of main
/// @param argv    of main; `--benchmark_filter=REGEX` chooses by operation, type, place, bytes,
/// ranks
/// @param launch  as above
/// @param cases   what there is to choose from
/// @return main's: 0; 1 if a result was wrong or a rank failed, after which nothing is measured any
///         more; 2 if options or cases are wrong
template <class Launch>
  requires(!Communicator<Launch>)
[[nodiscard]] int collectives(int argc,
                              char** argv,
                              Launch const& launch,
                              CollectiveCases const& cases = {}) {
  detail::Groups<Launch> groups(launch);
  try {
    return detail::run_collectives(
        argc, argv, cases, [&](Case const& work, int ranks) { return groups.ask(work, ranks); });
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

/// The same for ranks that are there, such as the processes of a job. Collective; rank 0 reads the
/// options and prints.
/// @param argc   of main
/// @param argv   of main; rank 0's count
/// @param comm   over all of them
/// @param cases  as above; rank 0's count
/// @param raw    a baseline, and an allocator: as above
/// @return main's, as above, the same on all ranks
/// @throws Error as the communicator
template <Communicator C, class... Raw>
[[nodiscard]] int collectives(
    int argc, char** argv, C& comm, CollectiveCases cases = {}, Raw&&... raw) {
  detail::Rank rank(comm, raw...);
  if (comm.rank() != 0) return rank.serve();
  cases.ranks = {comm.size()};
  int const status = detail::run_collectives(
      argc, argv, cases, [&](Case const& work, int /*ranks*/) { return rank.ask(work); });
  rank.dismiss(status);
  return status;
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
