/// @file
/// Benches every collective of a communicator: a whole program in a line.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/bench/measure.hpp"
#include "zero/bench/program.hpp"
#include "zero/concepts/communicator.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::bench {

namespace detail {

/// Ranks that stay while cases of one size of group are measured.
template <class Launch>
class Crew {
 public:
  explicit Crew(Launch const& launch) : launch_(launch) {}
  Crew(Crew const&) = delete;
  Crew& operator=(Crew const&) = delete;
  ~Crew() { dismiss(); }

  Row run(Case const& work, int ranks) {
    if (ranks != ranks_) {
      dismiss();
      gather(ranks);
    }
    std::unique_lock lock(mutex_);
    work_ = &work;
    row_.reset();
    ++generation_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return row_ || ended_; });
    if (row_) return *row_;
    lock.unlock();
    dismiss();
    if (error_ != nullptr) std::rethrow_exception(error_);
    fail(ErrorKind::invalid_argument,
         {"the launcher returned before ", ranks, " ranks had run their body"});
  }

 private:
  void gather(int ranks) {
    ranks_ = ranks;
    generation_ = 0;
    ended_ = false;
    error_ = nullptr;
    thread_ = std::thread([this, ranks] {
      try {
        launch_(ranks, [this](auto& comm, auto&&... raw) { this->serve(comm, raw...); });
      } catch (...) {
        error_ = std::current_exception();
      }
      std::lock_guard const lock(mutex_);
      ended_ = true;
      changed_.notify_all();
    });
  }

  /// What each rank does.
  template <Communicator C, class... Raw>
  void serve(C& comm, Raw&... raw) {
    for (int seen = 0;;) {
      Case const* work = nullptr;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return generation_ != seen; });
        seen = generation_;
        work = work_;
      }
      if (work == nullptr) return;
      Row const row = measure(comm, *work, raw...);
      if (comm.rank() != 0) continue;
      std::lock_guard const lock(mutex_);
      row_ = row;
      changed_.notify_all();
    }
  }

  void dismiss() {
    if (!thread_.joinable()) return;
    {
      std::lock_guard const lock(mutex_);
      work_ = nullptr;
      ++generation_;
      changed_.notify_all();
    }
    thread_.join();
    ranks_ = 0;
  }

  Launch const& launch_;
  int ranks_ = 0;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Case const* work_ = nullptr;
  int generation_ = 0;
  std::optional<Row> row_;
  bool ended_ = false;
  std::exception_ptr error_;
};

}  // namespace detail

/// A whole program for ranks that are threads of this process: parses options, measures, prints.
///
/// `launch(ranks, body)` runs a group of so many ranks and returns when all have ended; each rank
/// calls `body(comm)`, or `body(comm, raw)` with a baseline, or `body(comm, raw, allocator)`: see
/// `measure`. It is called once for each size of group, on a thread of its own.
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
  detail::Crew<Launch> crew(launch);
  return detail::run_program(
      argc, argv, true, 0, [&](Case const& work, int ranks) { return crew.run(work, ranks); });
}

/// The same for ranks that are there, such as the processes of a job, of which each calls this with
/// equal arguments. Collective; rank 0 prints.
/// @param argc  of main
/// @param argv  of main
/// @param comm  over all of them
/// @param raw   a baseline, and an allocator: see `measure`
/// @return main's, as above
template <Communicator C, class... Raw>
[[nodiscard]] int collectives(int argc, char** argv, C& comm, Raw&&... raw) {
  return detail::run_program(
      argc, argv, comm.rank() == 0, comm.size(), [&](Case const& work, int /*ranks*/) {
        return measure(comm, work, raw...);
      });
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
