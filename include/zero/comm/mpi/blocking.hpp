/// @file
/// MPI's calls that return when other ranks make them too, up to a deadline.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/library.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// One rank's patience with the others, where MPI itself has none to offer.
///
/// What MPI can start without blocking is polled. What has no such form is called by a thread, so
/// that the caller can stop waiting for it. That takes MPI_THREAD_SERIALIZED; below it such a call
/// takes as long as it takes.
class Blocking {
 public:
  Blocking(MPI_Comm comm, double deadline_s) : deadline_(deadline_s) {
    check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
    by_thread_ = provided >= MPI_THREAD_SERIALIZED;
    multiple_ = provided == MPI_THREAD_MULTIPLE;
  }

  /// True if no call can outlast the deadline.
  [[nodiscard]] bool always_ends() const noexcept { return by_thread_; }
  /// Names what the calls from here on are for.
  void begin(char const* operation) noexcept { operation_ = operation; }
  /// Why waiting ended without the others; empty if it never did.
  [[nodiscard]] std::string const& complaint() const noexcept { return complaint_; }
  /// True once a call did not come back: its thread may be inside of MPI for ever, and so may be
  /// what it works on.
  [[nodiscard]] bool lost() const noexcept { return lost_; }
  /// False if such a thread is the one that may call MPI; then all that is left is to abort.
  [[nodiscard]] bool may_call() const noexcept { return !lost_ || multiple_; }

  /// MPI's code of a blocking call.
  /// @param state     all that MPI reads and writes: a copy of it lives on with a call that never
  ///   ends
  /// @param function  makes the call, for a `State*`
  /// @throws Error (communication) after the deadline
  template <class State>
  [[nodiscard]] int call(char const* name, State& state, int (*function)(void*)) {
    static_assert(std::is_trivially_copyable_v<State> && sizeof(State) <= sizeof(Task::state));
    return by_thread_ ? call_by_thread(name, &state, sizeof state, function) : function(&state);
  }

  /// Looks until `ready()`.
  /// @param what  others do meanwhile
  /// @throws Error (communication) after the deadline
  template <class Ready>
  void wait(char const* what, Ready const& ready) {
    if (!look(ready, deadline_)) give_up(what);
  }

  /// Returns when all ranks have come here.
  ZERO_COLD void meet(MPI_Comm comm) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm, &request), "MPI_Ibarrier");
    if (!completes("MPI_Ibarrier", request, deadline_)) give_up("MPI_Ibarrier");
  }

  /// What every rank gives, in rank order.
  template <class T>
  [[nodiscard]] std::vector<T> gather(MPI_Comm comm, int size, T const& mine) {
    std::vector<T> all(static_cast<std::size_t>(size));
    Bytes const found = gather(comm, size, &mine, sizeof mine, deadline_);
    if (found == nullptr) give_up("MPI_Iallgather");
    std::memcpy(all.data(), found.get(), all.size() * sizeof mine);
    return all;
  }

  /// Finds out whether some rank cannot go on, so that none goes on without it.
  /// @param problem  of this rank, or empty
  /// @return the first rank's problem, the same on all ranks; empty if there is none
  [[nodiscard]] ZERO_COLD std::string first_problem(MPI_Comm comm,
                                                    int size,
                                                    std::string const& problem) {
    char mine[512] = {};
    problem.copy(mine, sizeof mine - 1);
    // Others may be where they cannot hear of it. This rank knows enough.
    Seconds const limit = problem.empty() ? deadline_ : (std::min)(deadline_, patience);
    Bytes const all = gather(comm, size, mine, sizeof mine, limit);
    if (all == nullptr && problem.empty()) give_up("MPI_Iallgather");
    if (all == nullptr) return problem;
    for (int rank = 0; rank < size; ++rank) {
      std::size_t const at = static_cast<std::size_t>(rank) * sizeof mine;
      std::string_view const text(reinterpret_cast<char const*>(all.get() + at));
      if (!text.empty()) return Message({"rank ", rank, ": ", text}).text();
    }
    return {};
  }

  /// A communicator of the library's own with the ranks of `comm`, whose errors are returned.
  [[nodiscard]] ZERO_COLD MPI_Comm duplicate(MPI_Comm comm) {
    auto made = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(comm, made.get(), &request), "MPI_Comm_idup");
    if (!completes("MPI_Comm_idup", request, deadline_)) {
      // MPI may still write there.
      static_cast<void>(made.release());
      give_up("MPI_Comm_idup");
    }
    return returning_errors(*made);
  }

  /// The part of a communicator that gives the same color, ordered by key.
  [[nodiscard]] MPI_Comm divide(MPI_Comm comm, int color, int key) {
    return part_of("MPI_Comm_split", {comm, color, key}, [](void* state) {
      auto& [all, mine, place, part] = *static_cast<Part*>(state);
      return MPI_Comm_split(all, mine, place, &part);
    });
  }

  /// The part of a communicator that can share memory, ordered by key.
  [[nodiscard]] MPI_Comm machine(MPI_Comm comm, int key) {
    return part_of("MPI_Comm_split_type", {comm, MPI_COMM_TYPE_SHARED, key}, [](void* state) {
      auto& [all, type, place, part] = *static_cast<Part*>(state);
      return MPI_Comm_split_type(all, type, place, MPI_INFO_NULL, &part);
    });
  }

  /// Gives a communicator back, with all of its ranks.
  void release(MPI_Comm& comm) {
    check(call("MPI_Comm_free",
               comm,
               [](void* all) { return MPI_Comm_free(static_cast<MPI_Comm*>(all)); }),
          "MPI_Comm_free");
  }

 private:
  using Seconds = std::chrono::duration<double>;
  using Bytes = std::unique_ptr<std::byte[]>;
  /// For telling others of what this rank knows already.
  static constexpr Seconds patience{1};

  /// What a communicator is divided by, and what of it this rank gets.
  struct Part {
    MPI_Comm comm;
    int color;  ///< or type
    int key;
    MPI_Comm part = MPI_COMM_NULL;
  };
  [[nodiscard]] ZERO_COLD MPI_Comm part_of(char const* name, Part state, int (*function)(void*)) {
    check(call(name, state, function), name);
    return returning_errors(state.part);
  }
  [[nodiscard]] static MPI_Comm returning_errors(MPI_Comm comm) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
  }

  /// What a thread shares with who waits for it.
  struct Task {
    alignas(std::max_align_t) std::byte state[64];
    int (*function)(void*);
    int code = MPI_SUCCESS;
    bool done = false;
    std::mutex mutex{};
    std::condition_variable ended{};
  };
  [[nodiscard]] ZERO_COLD int call_by_thread(char const* name,
                                             void* state,
                                             std::size_t bytes,
                                             int (*function)(void*)) {
    std::unique_ptr<Task> task(new Task);
    std::memcpy(task->state, state, bytes);
    task->function = function;
    std::thread thread([shared = task.get()] {
      int const code = shared->function(shared->state);
      std::lock_guard const lock(shared->mutex);
      shared->code = code;
      shared->done = true;
      shared->ended.notify_all();
    });
    std::unique_lock lock(task->mutex);
    auto const limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(deadline_);
    bool const done = task->ended.wait_until(lock, limit, [&] { return task->done; });
    lock.unlock();
    if (!done) {
      thread.detach();
      // The thread may still come back to it.
      static_cast<void>(task.release());
      lost_ = true;
      give_up(name);
    }
    thread.join();
    std::memcpy(state, task->state, bytes);
    return task->code;
  }

  /// The bytes that every rank gives, in rank order; null if that takes longer than `limit`.
  [[nodiscard]] ZERO_COLD static Bytes gather(
      MPI_Comm comm, int size, void const* mine, std::size_t bytes, Seconds limit) {
    std::size_t const own = static_cast<std::size_t>(size) * bytes;
    Bytes all(new std::byte[own + bytes]);
    std::memcpy(all.get() + own, mine, bytes);
    auto const count = static_cast<int>(bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(
              all.get() + own, count, MPI_BYTE, all.get(), count, MPI_BYTE, comm, &request),
          "MPI_Iallgather");
    // MPI may still write there.
    if (!completes("MPI_Iallgather", request, limit)) static_cast<void>(all.release());
    return all;
  }

  /// False if what MPI has begun takes longer than `limit`.
  [[nodiscard]] ZERO_COLD static bool completes(char const* name,
                                                MPI_Request request,
                                                Seconds limit) {
    return look(
        [&] {
          int complete = 0;
          check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), name);
          return complete != 0;
        },
        limit);
  }

  template <class Ready>
  [[nodiscard]] static bool look(Ready const& ready, Seconds limit) {
    auto const end = Clock::now() + limit;
    for (Backoff backoff; !ready(); backoff.pause()) {
      if (Clock::now() > end) return false;
    }
    return true;
  }

  [[noreturn]] ZERO_COLD void give_up(char const* what) {
    complaint_ = Message({"some rank did not take part in ",
                          what,
                          " within ",
                          std::to_string(deadline_.count()),
                          " s: it is gone, or hangs, or does something else than ",
                          operation_})
                     .text();
    fail(ErrorKind::communication, complaint_, {.rank = rank_, .operation = operation_});
  }

  Seconds deadline_;
  int rank_ = -1;
  bool by_thread_ = false;
  bool multiple_ = false;
  bool lost_ = false;
  char const* operation_ = "construction";
  std::string complaint_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
