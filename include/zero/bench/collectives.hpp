/// @file
/// Benches every collective of a communicator: a whole program in a line, around Google Benchmark.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/bench/measure.hpp"
#include "zero/bench/options.hpp"
#include "zero/bench/reporter.hpp"
#include "zero/concepts/communicator.hpp"

#include <benchmark/benchmark.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

namespace detail {

/// Between the thread of Google Benchmark, which asks, and rank 0's, which answers for its group.
class Desk {
 public:
  /// What a round of a group has found. @throws what rank 0 threw
  Round ask(Case const& work) {
    std::unique_lock lock(mutex_);
    order_.emplace(work, 0);
    answer_.reset();
    changed_.notify_all();
    changed_.wait(lock, [&] { return answer_ || left_; });
    if (answer_) return *answer_;
    if (error_ != nullptr) std::rethrow_exception(error_);
    fail(ErrorKind::invalid_argument, "the launcher returned before its ranks had run their body");
  }
  /// There is nothing more to ask.
  void close(int status) {
    std::lock_guard const lock(mutex_);
    order_.emplace(Case{.iterations = 0}, status);
    changed_.notify_all();
  }

  std::pair<Case, int> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return order_.has_value(); });
    return *std::exchange(order_, std::nullopt);
  }
  void answer(Round const& round) {
    std::lock_guard const lock(mutex_);
    answer_ = round;
    changed_.notify_all();
  }
  /// Nobody answers any more.
  void leave(std::exception_ptr error) {
    std::lock_guard const lock(mutex_);
    left_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<std::pair<Case, int>> order_;
  std::optional<Round> answer_;
  std::exception_ptr error_;
  bool left_ = false;
};

/// A group at a time, of ranks that are threads; it stays while its size is asked for.
template <class Launch>
class Groups {
 public:
  explicit Groups(Launch const& launch) : launch_(launch) {}
  Groups(Groups const&) = delete;
  Groups& operator=(Groups const&) = delete;
  ~Groups() { dismiss(); }

  Round ask(Case const& work, int ranks) {
    if (ranks != ranks_) {
      dismiss();
      desk_.emplace();
      ranks_ = ranks;
      thread_ = std::thread([this, ranks] {
        std::exception_ptr error;
        try {
          launch_(ranks, [this](auto& comm, auto&&... raw) { serve(comm, *desk_, raw...); });
        } catch (...) {
          error = std::current_exception();
        }
        desk_->leave(error);
      });
    }
    return desk_->ask(work);
  }

 private:
  void dismiss() {
    if (!thread_.joinable()) return;
    desk_->close(0);
    thread_.join();
  }

  Launch const& launch_;
  int ranks_ = 0;
  std::thread thread_;
  std::optional<Desk> desk_;
};

/// What was asked for.
struct Request {
  std::vector<DType> dtypes{DType::f32};
  std::vector<int> ranks{2};
  std::vector<bool> places{false};
  std::size_t smallest = KiB;
  std::size_t largest = 256 * MiB;
  std::size_t factor = 4;
  Case common;
};

/// @param asks_ranks  false where the group is there before the program
[[nodiscard]] inline std::vector<Option> options_of(Request& to, bool& help, bool asks_ranks) {
  using Text = std::string_view;
  static std::vector<DType> const dtypes{DType::f32, DType::bf16, DType::f16};
  auto const size = [](std::size_t& into) {
    return [&into](Text text) { into = parse_size(text); };
  };
  std::vector<Option> options{
      {"--dtype", "fp32, bf16, fp16, all [fp32]", [&](Text l) { to.dtypes = choose(l, dtypes); }},
      {"--place",
       "send and receive in two buffers or one: out, in, both [out]",
       [&](Text text) {
         if (text != "out" && text != "in" && text != "both") {
           fail(ErrorKind::invalid_argument, {"--place is out, in or both, not ", text});
         }
         to.places.clear();
         if (text != "in") to.places.push_back(false);
         if (text != "out") to.places.push_back(true);
       }},
      {"--min", "smallest size: bytes of a rank's larger buffer [1K]", size(to.smallest)},
      {"--max", "largest size [256M]", size(to.largest)},
      {"--factor", "from one size to the next [4]", size(to.factor)},
      {"--late",
       "microseconds that the last rank begins after the others, as in a trainer [0]",
       [&](Text text) { to.common.late_us = static_cast<std::int64_t>(parse_size(text)); }},
      {"--no-check",
       "do not look whether results are right",
       [&](Text) { to.common.check = false; },
       true},
      {"--ordinary",
       "ordinary memory instead of the communicator's",
       [&](Text) { to.common.ordinary = true; },
       true},
      {"--help", "this, and nothing else", [&](Text) { help = true; }, true}};
  if (asks_ranks) {
    options.push_back({"--ranks", "sizes of groups, with commas [2]", [&](Text list) {
                         to.ranks.clear();
                         for (Text const one : split_list(list)) {
                           to.ranks.push_back(static_cast<int>(parse_size(one)));
                         }
                       }});
  }
  return options;
}

/// The program: one benchmark a case, whose repetitions are rounds.
/// @param ranks  of the group that is there; 0 if `ask` makes one of any size
/// @param ask    measures a round
/// @return its exit status: 0, 1 if a result is wrong or a rank failed, 2 if the options are wrong
inline int run_program(int argc,
                       char** argv,
                       int ranks,
                       std::function<Round(Case const&, int ranks)> const& ask) {
  Request asked;
  Program program{argc, argv};
  program.options = options_of(asked, program.help, ranks == 0);
  auto const measure = [&](benchmark::State& state, Case work, int size) {
    if (program.failed) return state.SkipWithError("an earlier one failed");
    try {
      Round found;
      while (state.KeepRunningBatch(state.max_iterations)) {
        work.iterations = static_cast<std::int64_t>(state.max_iterations);
        found = ask(work, size);
        state.SetIterationTime(found.seconds * static_cast<double>(work.iterations));
      }
      auto const bytes = static_cast<double>(found.bytes);
      program.wrong = program.wrong || found.wrong > 0;
      state.SetLabel("raw: " + std::string(found.raw));
      state.counters["count"] = static_cast<double>(found.count);
      state.counters["algbw"] = bytes / found.seconds * 1e-9;
      state.counters["busbw"] = bytes / found.seconds * 1e-9 * bus_factor(work.op, size);
      state.counters["raw_algbw"] = bytes / found.raw_seconds * 1e-9;
      state.counters["vs_raw"] = found.raw_seconds / found.seconds;
      state.counters["wrong"] = found.wrong;
    } catch (std::exception const& error) {
      program.failed = true;
      state.SkipWithError(error.what());
    }
  };
  bool const timed = program.has("--benchmark_min_time");
  auto const add = [&] {
    if (ranks > 0) asked.ranks = {ranks};
    for (int const size : asked.ranks) {
      for (int op = 0; op < op_count; ++op) {
        for (DType const dtype : asked.dtypes) {
          for (bool const in_place : asked.places) {
            if (in_place && static_cast<Op>(op) == Op::all_to_all)
              continue;  // there is no such call
            for (std::size_t const bytes : sizes(asked.smallest, asked.largest, asked.factor)) {
              Case work = asked.common;
              work.op = static_cast<Op>(op);
              work.dtype = dtype;
              work.in_place = in_place;
              work.bytes = bytes;
              std::string const title =
                  "collective/" + std::string(name(work.op)) + "/" + std::string(name(dtype)) +
                  (in_place ? "/in_place" : "/out_of_place") + "/bytes:" + std::to_string(bytes) +
                  "/ranks:" + std::to_string(size);
              auto* const one = benchmark::RegisterBenchmark(
                  title.c_str(),
                  [&measure, work, size](benchmark::State& state) { measure(state, work, size); });
              one->UseManualTime()->Unit(benchmark::kMicrosecond);
              if (!timed) one->MinTime(0.02);
            }
          }
        }
      }
    }
  };
  return program.run(add);
}

}  // namespace detail

/// A whole program for ranks that are threads of this process: parses options, measures, prints.
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
/// @param argv    of main; `--help` lists the options
/// @param launch  as above
/// @return main's: 0; 1 if a result was wrong or a rank failed; 2 if the options are wrong
template <class Launch>
  requires(!Communicator<Launch>)
[[nodiscard]] int collectives(int argc, char** argv, Launch const& launch) {
  detail::Groups<Launch> groups(launch);
  return detail::run_program(
      argc, argv, 0, [&](Case const& work, int ranks) { return groups.ask(work, ranks); });
}

/// The same for ranks that are there, such as the processes of a job. Collective; rank 0 reads the
/// options and prints, on a thread of its own that does not touch the communicator.
/// @param argc  of main
/// @param argv  of main; rank 0's count
/// @param comm  over all of them
/// @param raw   a baseline, and an allocator: as above
/// @return main's, as above, the same on all ranks
/// @throws Error as the communicator
template <Communicator C, class... Raw>
[[nodiscard]] int collectives(int argc, char** argv, C& comm, Raw&&... raw) {
  detail::Desk desk;
  if (comm.rank() != 0) return detail::serve(comm, desk, raw...);
  int const size = comm.size();
  std::thread google([&] {
    desk.close(detail::run_program(
        argc, argv, size, [&](Case const& work, int /*ranks*/) { return desk.ask(work); }));
  });
  int status = 1;
  std::exception_ptr error;
  try {
    status = detail::serve(comm, desk, raw...);
  } catch (...) {
    error = std::current_exception();
  }
  desk.leave(error);
  google.join();
  if (error != nullptr) std::rethrow_exception(error);
  return status;
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
