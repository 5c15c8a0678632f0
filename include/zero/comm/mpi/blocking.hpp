/// @file
/// MPI's calls that return when other ranks make them too, up to a deadline; and how many families
/// of groups share the one MPI of a process.
#pragma once

#include "zero/base/clock.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/library.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// One rank's patience with the others, where MPI itself has none to offer.
///
/// What MPI can start without blocking is polled. Before what has no such form all ranks meet in a
/// barrier that is polled, at any thread level. A rank that dies between the two is not found: the
/// others stay in MPI's call.
class Blocking {
 public:
  Blocking(MPI_Comm comm, double deadline_s) : deadline_(deadline_s) {
    check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
  }

  /// Names what the calls from here on are for.
  void begin(char const* operation) noexcept { operation_ = operation; }
  /// Why waiting ended without the others; empty if it never did.
  [[nodiscard]] std::string const& complaint() const noexcept { return complaint_; }

  /// Comes back once all ranks of `comm` are about to make a call that only all make together.
  /// @throws Error (communication) after the deadline
  ZERO_COLD void meet(char const* call, MPI_Comm comm) {
    MPI_Request barrier = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm, &barrier), "MPI_Ibarrier");
    // One that never completes stays MPI's own: it cannot be cancelled.
    if (!completes(barrier, "MPI_Ibarrier", deadline_)) give_up(call);
  }

  /// Looks until `ready()`.
  /// @param what  others do meanwhile
  /// @throws Error (communication) after the deadline
  template <class Ready>
  void wait(char const* what, Ready const& ready) {
    if (!look(ready, deadline_)) give_up(what);
  }

  /// What every rank gives, in rank order.
  template <class T>
  [[nodiscard]] ZERO_COLD std::vector<T> gather(MPI_Comm comm, int size, T const& mine) {
    std::vector<T> all = gather(comm, size, mine, deadline_);
    if (all.empty()) give_up("MPI_Iallgather");
    return all;
  }

  /// Finds out whether some rank cannot go on, so that none goes on without it.
  /// @param problem  of this rank, or empty
  /// @return the first rank's problem, the same on all ranks; empty if there is none
  [[nodiscard]] ZERO_COLD std::string first_problem(MPI_Comm comm,
                                                    int size,
                                                    std::string const& problem) {
    struct Problem {
      char text[512];
    } mine{};
    problem.copy(mine.text, sizeof mine.text - 1);
    // Others may be where they cannot hear of it. Then this rank knows enough.
    Seconds const limit = problem.empty() ? deadline_ : (std::min)(deadline_, Seconds(1));
    std::vector<Problem> const all = gather(comm, size, mine, limit);
    if (all.empty() && problem.empty()) give_up("MPI_Iallgather");
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      std::string_view const text = all[rank].text;
      if (!text.empty()) return Message({"rank ", rank, ": ", text}).text();
    }
    return problem;
  }

  /// A communicator of the library's own with the ranks of `comm`, whose errors are returned.
  [[nodiscard]] ZERO_COLD MPI_Comm duplicate(MPI_Comm comm) {
    auto const copy = [=](MPI_Comm& made, MPI_Request& request) {
      return MPI_Comm_idup(comm, &made, &request);
    };
    auto const made = polled("MPI_Comm_idup", MPI_COMM_NULL, deadline_, copy);
    if (made == nullptr) give_up("MPI_Comm_idup");
    return returning_errors(*made);
  }
  /// The part of a communicator that gives the same color, ordered by key.
  [[nodiscard]] ZERO_COLD MPI_Comm divide(MPI_Comm comm, int color, int key) {
    meet("MPI_Comm_split", comm);
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split(comm, color, key, &part), "MPI_Comm_split");
    return returning_errors(part);
  }
  /// The part of a communicator that can share memory, ordered by key.
  [[nodiscard]] ZERO_COLD MPI_Comm machine(MPI_Comm comm, int key) {
    meet("MPI_Comm_split_type", comm);
    MPI_Comm part = MPI_COMM_NULL;
    check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &part),
          "MPI_Comm_split_type");
    return returning_errors(part);
  }
  /// Gives a communicator back, with all of its ranks, which have met.
  static void release(MPI_Comm& comm) { check(MPI_Comm_free(&comm), "MPI_Comm_free"); }

 private:
  using Seconds = std::chrono::duration<double>;

  [[nodiscard]] static MPI_Comm returning_errors(MPI_Comm comm) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
  }

  /// Nothing if that takes longer than `limit`.
  template <class T>
  [[nodiscard]] static std::vector<T> gather(MPI_Comm comm,
                                             int size,
                                             T const& mine,
                                             Seconds limit) {
    auto const gather = [=](std::vector<T>& all, MPI_Request& request) {
      auto const bytes = static_cast<int>(sizeof(T));
      return MPI_Iallgather(
          &all.back(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, comm, &request);
    };
    std::vector<T> const start(static_cast<std::size_t>(size) + 1, mine);
    auto const all = polled("MPI_Iallgather", start, limit, gather);
    if (all == nullptr) return {};
    all->pop_back();
    return std::move(*all);
  }

  /// What MPI writes, once `begin(memory, request)` has been called, or null if that takes longer
  /// than `limit`.
  template <class Memory, class Begin>
  [[nodiscard]] static std::unique_ptr<Memory> polled(char const* name,
                                                      Memory const& start,
                                                      Seconds limit,
                                                      Begin const& begin) {
    auto memory = std::make_unique<Memory>(start);
    MPI_Request request = MPI_REQUEST_NULL;
    check(begin(*memory, request), name);
    // Or MPI may still write there.
    if (!completes(request, name, limit)) static_cast<void>(memory.release());
    return memory;
  }
  [[nodiscard]] static bool completes(MPI_Request& request, char const* name, Seconds limit) {
    auto const is_complete = [&] {
      int complete = 0;
      check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), name);
      return complete != 0;
    };
    return look(is_complete, limit);
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
                          deadline_.count(),
                          " s: it is gone, or hangs, or does something else than ",
                          operation_})
                     .text();
    fail(ErrorKind::communication, complaint_, {.rank = rank_, .operation = operation_});
  }

  Seconds deadline_;
  int rank_ = -1;
  char const* operation_ = "construction";
  std::string complaint_;
};

/// Families of the process, or -1 for one that has to be alone. MPI keeps the number, as an
/// attribute of MPI_COMM_SELF, and throws it away in MPI_Finalize.
inline std::atomic<int>& count_of_families() {
  auto const forget = [](MPI_Comm /*self*/, int /*key*/, void* count, void* /*unused*/) {
    delete static_cast<std::atomic<int>*>(count);
    return MPI_SUCCESS;
  };
  // A name, which MPI has no other place for; MPI runs once in a process.
  static int const key = [&] {
    int made = MPI_KEYVAL_INVALID;
    check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, forget, &made, nullptr),
          "MPI_Comm_create_keyval");
    check(MPI_Comm_set_attr(MPI_COMM_SELF, made, new std::atomic<int>(0)), "MPI_Comm_set_attr");
    return made;
  }();
  void* count = nullptr;
  int found = 0;
  check(MPI_Comm_get_attr(MPI_COMM_SELF, key, static_cast<void*>(&count), &found),
        "MPI_Comm_get_attr");
  return *static_cast<std::atomic<int>*>(count);
}

/// A progress thread under MPI_THREAD_SERIALIZED knows when its own family calls MPI, and of nobody
/// else's calls: such a family is alone.
/// @return what says, in its end, that the family calls MPI no more
/// @throws Error (invalid_argument) if this family or one that is there has to be alone
[[nodiscard]] inline std::shared_ptr<void> count_family(bool alone) {
  std::atomic<int>& count = count_of_families();
  int others = 0;
  while (!count.compare_exchange_weak(others, alone ? -1 : others + 1)) {
    if (others < 0) {
      fail(ErrorKind::invalid_argument,
           "a communicator with ProgressThread::sole exists, whose thread alone may call MPI: "
           "split that one, or close it before");
    }
    if (alone && others > 0) {
      fail(ErrorKind::invalid_argument,
           {"ProgressThread::sole while there are ",
            others,
            " other families of groups in this process: split one of them, or close them before"});
    }
  }
  return {nullptr, [&count](void* /*unused*/) noexcept {
            if (is_running()) count.fetch_add(count < 0 ? 1 : -1);
          }};
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
