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
#include <optional>
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
///
/// A rank whose patience ends calls the roll: it sends an empty message to all, and who waits and
/// sees it does the same, whatever it waits for. Who sends none is missing. Nothing is sent before.
class Blocking {
 public:
  /// @param comm  has all ranks; the roll is called over it in construction
  Blocking(MPI_Comm comm, double deadline_s) : world_(comm), deadline_(deadline_s) {
    check(MPI_Comm_rank(comm, &rank_), "MPI_Comm_rank");
    // Of a construction that failed before.
    while (next_word() >= 0) {
    }
  }

  /// Names what the calls from here on are for.
  /// @param world  has all ranks, in the same order; the roll is called over it
  void begin(char const* operation, MPI_Comm world) noexcept {
    operation_ = operation;
    world_ = world;
  }
  /// Why waiting ended without the others; empty if it never did.
  [[nodiscard]] std::string const& complaint() const noexcept { return complaint_; }

  /// Comes back once all ranks of `comm` are about to make a call that only all make together.
  /// @throws Error (communication) after the deadline
  ZERO_COLD void meet(char const* call, MPI_Comm comm) {
    MPI_Request barrier = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm, &barrier), "MPI_Ibarrier");
    // One that never completes stays MPI's own: it cannot be cancelled.
    if (!completes(barrier, "MPI_Ibarrier", deadline_)) give_up(call, comm);
  }

  /// Looks until `ready()`.
  /// @param what  the ranks of `comm` do meanwhile
  /// @throws Error (communication) after the deadline
  template <class Ready>
  void wait(char const* what, MPI_Comm comm, Ready const& ready) {
    if (!comes(ready, deadline_)) give_up(what, comm);
  }

  /// What every rank gives, in rank order.
  template <class T>
  [[nodiscard]] ZERO_COLD std::vector<T> gather(MPI_Comm comm, int size, T const& mine) {
    std::vector<T> all = gather(comm, size, mine, deadline_);
    if (all.empty()) give_up("MPI_Iallgather", comm);
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
    if (all.empty() && problem.empty()) give_up("MPI_Iallgather", comm);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      std::string_view const text = all[rank].text;
      if (!text.empty()) return Message({"rank ", rank, ": ", text}).text();
    }
    return problem;
  }

  /// A communicator of the library's own with the ranks of `comm`, whose errors are returned.
  [[nodiscard]] ZERO_COLD MPI_Comm duplicate(MPI_Comm comm) {
    std::shared_ptr<void> const errors = returning_errors(comm);
    auto const copy = [=](MPI_Comm& made, MPI_Request& request) {
      return MPI_Comm_idup(comm, &made, &request);
    };
    auto const made = polled("MPI_Comm_idup", MPI_COMM_NULL, deadline_, copy);
    if (made == nullptr) give_up("MPI_Comm_idup", comm);
    return with_errors_returned(*made);
  }
  /// The part of a communicator that gives the same color, or none and can share memory, ordered by
  /// key.
  [[nodiscard]] ZERO_COLD MPI_Comm divide(MPI_Comm comm, std::optional<int> color, int key) {
    meet("MPI_Comm_split", comm);
    MPI_Comm part = MPI_COMM_NULL;
    check(color ? MPI_Comm_split(comm, *color, key, &part)
                : MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &part),
          "MPI_Comm_split");
    return with_errors_returned(part);
  }
  /// Gives a communicator back, with all of its ranks, which have met.
  static void release(MPI_Comm comm) { check(MPI_Comm_free(&comm), "MPI_Comm_free"); }

 private:
  using Seconds = std::chrono::duration<double>;

  /// The largest that every MPI has: the trainer's own messages hardly have it.
  static constexpr int roll_tag = 32'767;
  static constexpr Seconds answer_time{0.5};

  [[nodiscard]] static MPI_Comm with_errors_returned(MPI_Comm comm) {
    check(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return comm;
  }

  /// Nothing if that takes longer than `limit`, or for another rank.
  template <class T>
  [[nodiscard]] std::vector<T> gather(MPI_Comm comm, int size, T const& mine, Seconds limit) {
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
  /// than `limit`, or for another rank.
  template <class Memory, class Begin>
  [[nodiscard]] std::unique_ptr<Memory> polled(char const* name,
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
  [[nodiscard]] bool completes(MPI_Request& request, char const* name, Seconds limit) {
    auto const is_complete = [&] {
      int complete = 0;
      check(MPI_Test(&request, &complete, MPI_STATUS_IGNORE), name);
      return complete != 0;
    };
    return comes(is_complete, limit);
  }
  /// Is it ready before the limit, and before another rank calls the roll?
  template <class Ready>
  [[nodiscard]] bool comes(Ready const& ready, Seconds limit) {
    bool is_ready = false;
    auto const is_over = [&] {
      is_ready = ready();
      int word = 0;
      if (!is_ready) MPI_Iprobe(MPI_ANY_SOURCE, roll_tag, world_, &word, MPI_STATUS_IGNORE);
      return is_ready || word != 0;
    };
    return look(is_over, limit) && is_ready;
  }
  template <class Ready>
  [[nodiscard]] static bool look(Ready const& ready, Seconds limit) {
    auto const end = Clock::now() + limit;
    for (Backoff backoff; !ready(); backoff.pause()) {
      if (Clock::now() > end) return false;
    }
    return true;
  }

  /// The rank that a word of the roll is from, or -1.
  [[nodiscard]] int next_word() const {
    int word = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, roll_tag, world_, &word, &status);
    if (word == 0) return -1;
    MPI_Recv(nullptr, 0, MPI_BYTE, status.MPI_SOURCE, roll_tag, world_, MPI_STATUS_IGNORE);
    return status.MPI_SOURCE;
  }

  /// Calls the roll.
  /// @return which ranks of `comm` do not wait, as numbered in the first group
  [[nodiscard]] ZERO_COLD std::vector<int> missing(MPI_Comm comm) const {
    std::shared_ptr<void> const errors = returning_errors(world_);
    int size = 0;
    MPI_Comm_size(world_, &size);
    std::vector<bool> present(static_cast<std::size_t>(size));
    for (int peer = 0; peer < size; ++peer) {
      present[static_cast<std::size_t>(peer)] = peer == rank_;
      MPI_Request word = MPI_REQUEST_NULL;
      if (peer != rank_) MPI_Isend(nullptr, 0, MPI_BYTE, peer, roll_tag, world_, &word);
      if (word != MPI_REQUEST_NULL) MPI_Request_free(&word);
    }
    auto const all_present = [&] {
      for (int peer = next_word(); peer >= 0; peer = next_word()) {
        present[static_cast<std::size_t>(peer)] = true;
      }
      return std::count(present.begin(), present.end(), false) == 0;
    };
    static_cast<void>(look(all_present, answer_time));

    MPI_Group all = MPI_GROUP_NULL;
    MPI_Group members = MPI_GROUP_NULL;
    MPI_Comm_group(world_, &all);
    MPI_Comm_group(comm, &members);
    std::vector<int> absent;
    for (int peer = 0; peer < size; ++peer) {
      int place = MPI_UNDEFINED;
      MPI_Group_translate_ranks(all, 1, &peer, members, &place);
      if (place != MPI_UNDEFINED && !present[static_cast<std::size_t>(peer)]) {
        absent.push_back(peer);
      }
    }
    MPI_Group_free(&all);
    MPI_Group_free(&members);
    return absent;
  }

  [[noreturn]] ZERO_COLD void give_up(char const* what, MPI_Comm comm) {
    std::string const within = Message({" within ", deadline_.count(), " s"}).text();
    std::string names;
    std::vector<int> const absent = missing(comm);
    for (int const rank : absent) names += Message({names.empty() ? "" : ", ", rank}).text();
    if (absent.empty()) {
      complaint_ =
          Message({"MPI has not finished ", what, within, ", though all of its ranks wait"}).text();
    } else {
      bool const one = absent.size() == 1;
      complaint_ = Message({one ? "rank " : "ranks ",
                            names,
                            " did not take part in ",
                            what,
                            within,
                            one ? ": it is gone, or hangs, or does something else than "
                                : ": they are gone, or hang, or do something else than ",
                            operation_})
                       .text();
    }
    fail(ErrorKind::communication, complaint_, {.rank = rank_, .operation = operation_});
  }

  MPI_Comm world_;
  Seconds deadline_;
  int rank_ = -1;
  char const* operation_ = "construction";
  std::string complaint_;
};

/// A progress thread under MPI_THREAD_SERIALIZED knows when its own family calls MPI, and of nobody
/// else's calls: such a family is alone.
/// @return what says, in its end, that the family calls MPI no more
/// @throws Error (invalid_argument) if this family or one that is there has to be alone
[[nodiscard]] inline std::shared_ptr<void> count_family(bool alone) {
  // How many there are, or -1 for one that has to be alone.
  static std::atomic<int>& count = *kept_with<std::atomic<int>>(MPI_COMM_SELF);
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
  return {nullptr, [](void* /*unused*/) noexcept {
            if (is_running()) count.fetch_add(count < 0 ? 1 : -1);
          }};
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
