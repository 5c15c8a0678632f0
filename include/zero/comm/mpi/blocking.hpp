/// @file
/// MPI's calls that return when other ranks make them too, up to a deadline.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/library.hpp"

#include <algorithm>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
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
  /// @param state  all that MPI reads and writes: a copy of it lives on with a call that never ends
  /// @throws Error (communication) after the deadline
  template <class State>
  [[nodiscard]] int call(char const* name, State& state, int (*function)(State&)) {
    if (!by_thread_) return function(state);
    auto const kept = std::make_shared<State>(state);
    std::packaged_task<int()> task([kept, function] { return function(*kept); });
    std::future<int> code = task.get_future();
    std::thread thread(std::move(task));
    if (code.wait_for(deadline_) != std::future_status::ready) {
      thread.detach();
      lost_ = true;
      give_up(name);
    }
    thread.join();
    state = *kept;
    return code.get();
  }

  /// Completes what `start(state, request)` starts, and returns its state.
  /// @throws Error (communication) after the deadline, or with MPI's words
  template <class State>
  [[nodiscard]] State poll(char const* name,
                           State const& state,
                           int (*start)(State&, MPI_Request&)) {
    auto const done = poll(name, state, start, deadline_);
    if (done == nullptr) give_up(name);
    return std::move(*done);
  }

  /// Looks until `ready()`.
  /// @param what  others do meanwhile
  /// @throws Error (communication) after the deadline
  template <class Ready>
  void wait(char const* what, Ready const& ready) {
    if (!look(ready, deadline_)) give_up(what);
  }

  /// Returns when all ranks have come here.
  void meet(MPI_Comm comm) {
    static_cast<void>(poll<MPI_Comm>("MPI_Ibarrier", comm, [](MPI_Comm& all, MPI_Request& request) {
      return MPI_Ibarrier(all, &request);
    }));
  }

  /// What every rank gives, in rank order.
  template <class T>
  [[nodiscard]] std::vector<T> gather(MPI_Comm comm, int size, T const& mine) {
    return poll<Gathering<T>>("MPI_Iallgather", {comm, size, mine}, Gathering<T>::start).all;
  }

  /// Finds out whether some rank cannot go on, so that none goes on without it.
  /// @param problem  of this rank, or empty
  /// @return the first rank's problem, the same on all ranks; empty if there is none
  [[nodiscard]] std::string first_problem(MPI_Comm comm, int size, std::string const& problem) {
    struct Words {
      char text[512];
    } mine{};
    problem.copy(mine.text, sizeof mine.text - 1);
    Gathering<Words> const state{comm, size, mine};
    if (problem.empty()) return first_of(poll("MPI_Iallgather", state, state.start).all);
    // Others may be where they cannot hear of it. This rank knows enough.
    auto const heard = poll("MPI_Iallgather", state, state.start, (std::min)(deadline_, patience));
    return heard == nullptr ? problem : first_of(heard->all);
  }
  /// A communicator of the library's own with the ranks of `comm`, whose errors are returned.
  [[nodiscard]] MPI_Comm duplicate(MPI_Comm comm) {
    struct State {
      MPI_Comm from, to;
    };
    State const state{comm, MPI_COMM_NULL};
    auto const start = [](State& s, MPI_Request& request) {
      return MPI_Comm_idup(s.from, &s.to, &request);
    };
    return returning_errors(poll<State>("MPI_Comm_idup", state, start).to);
  }

  /// The part of a communicator that gives the same color, ordered by key.
  [[nodiscard]] MPI_Comm divide(MPI_Comm comm, int color, int key) {
    struct State {
      MPI_Comm comm;
      int color, key;
      MPI_Comm part;
    } state{comm, color, key, MPI_COMM_NULL};
    check(call<State>("MPI_Comm_split",
                      state,
                      [](State& s) { return MPI_Comm_split(s.comm, s.color, s.key, &s.part); }),
          "MPI_Comm_split");
    return returning_errors(state.part);
  }

  /// The part of a communicator that can share memory, ordered by key.
  [[nodiscard]] MPI_Comm machine(MPI_Comm comm, int key) {
    struct State {
      MPI_Comm comm;
      int key;
      MPI_Comm part;
    } state{comm, key, MPI_COMM_NULL};
    check(call<State>("MPI_Comm_split_type",
                      state,
                      [](State& s) {
                        return MPI_Comm_split_type(
                            s.comm, MPI_COMM_TYPE_SHARED, s.key, MPI_INFO_NULL, &s.part);
                      }),
          "MPI_Comm_split_type");
    return returning_errors(state.part);
  }

  /// Gives a communicator back, with all of its ranks.
  void release(MPI_Comm& comm) {
    check(call<MPI_Comm>("MPI_Comm_free", comm, [](MPI_Comm& all) { return MPI_Comm_free(&all); }),
          "MPI_Comm_free");
  }

 private:
  [[nodiscard]] static MPI_Comm returning_errors(MPI_Comm comm) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
  }

  using Seconds = std::chrono::duration<double>;
  /// For telling others of what this rank knows already.
  static constexpr Seconds patience{1};

  template <class T>
  struct Gathering {
    Gathering(MPI_Comm among, int size, T const& own)
        : comm(among), mine(own), all(static_cast<std::size_t>(size)) {}
    static int start(Gathering& state, MPI_Request& request) {
      constexpr int bytes = sizeof(T);
      return MPI_Iallgather(
          &state.mine, bytes, MPI_BYTE, state.all.data(), bytes, MPI_BYTE, state.comm, &request);
    }
    MPI_Comm comm;
    T mine;
    std::vector<T> all;
  };

  template <class Words>
  [[nodiscard]] static std::string first_of(std::vector<Words> const& all) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      std::string_view const text(all[rank].text);
      if (!text.empty()) return Message({"rank ", rank, ": ", text}).text();
    }
    return {};
  }

  /// Completes what `start(state, request)` starts; null if that takes longer than `limit`.
  template <class State>
  [[nodiscard]] std::unique_ptr<State> poll(char const* name,
                                            State const& state,
                                            int (*start)(State&, MPI_Request&),
                                            Seconds limit) {
    auto kept = std::make_unique<State>(state);
    MPI_Request request = MPI_REQUEST_NULL;
    check(start(*kept, request), name);
    bool const done = look(
        [&] {
          int complete = 0;
          check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), name);
          return complete != 0;
        },
        limit);
    // MPI may still write there.
    if (!done) static_cast<void>(kept.release());
    return kept;
  }

  template <class Ready>
  [[nodiscard]] static bool look(Ready const& ready, Seconds limit) {
    auto const end = Clock::now() + limit;
    for (Backoff backoff; !ready(); backoff.pause()) {
      if (Clock::now() > end) return false;
    }
    return true;
  }

  [[noreturn]] void give_up(char const* what) {
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
