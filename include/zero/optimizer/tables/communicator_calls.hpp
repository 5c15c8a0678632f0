/// @file
/// A communicator of any type, as the engine calls it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What the concepts of zero/concepts/communicator.hpp ask for, as functions of one type of
/// communicator. Tickets are places in an array, so that they may be of any size and none is
/// allocated in a step.
struct CommunicatorCalls {
  /// So many tickets, which are done.
  void* (*make_tickets)(std::size_t places);
  void (*free_tickets)(void* tickets) noexcept;
  void (*start)(void* comm, void* tickets, std::size_t place, Collective const& op);
  void (*wait)(void* comm, void* tickets, std::size_t place);
  /// The ticket is done; a collective that was not finished is withdrawn.
  void (*drop)(void* tickets, std::size_t place) noexcept;
  void (*run)(void* comm, Collective const& op);     ///< starts it and waits for it
  void (*progress)(void* comm) noexcept;             ///< null: nothing needs it
  std::uint64_t (*held)(void const* comm);           ///< null: it holds nothing
  void (*confirm)(void* comm);                       ///< null: the host sees what happened
  std::int64_t const* (*ended)(void const* comm);    ///< null, likewise
  std::string_view (*group_name)(void const* comm);  ///< null: groups have no names
  bool adds_squares;                                 ///< is it a SquaringCommunicator?
};

/// A communicator of any type, which outlives it, and its calls.
struct CommunicatorRef {
  CommunicatorCalls const* calls = nullptr;
  void* comm = nullptr;
  int rank = 0;
  int size = 1;
};

/// Collectives under way, by their places. One that is dropped, or destroyed, before it is done is
/// withdrawn.
class Tickets {
 public:
  Tickets(CommunicatorRef comm, std::size_t places)
      : comm_(comm), tickets_(comm.calls->make_tickets(places)) {}
  Tickets(Tickets&& other) noexcept
      : comm_(other.comm_), tickets_(std::exchange(other.tickets_, nullptr)) {}
  Tickets& operator=(Tickets&&) = delete;
  ~Tickets() {
    if (tickets_ != nullptr) comm_.calls->free_tickets(tickets_);
  }

  void start(std::size_t place, Collective const& op) {
    comm_.calls->start(comm_.comm, tickets_, place, op);
  }
  void wait(std::size_t place) { comm_.calls->wait(comm_.comm, tickets_, place); }
  void drop(std::size_t place) noexcept { comm_.calls->drop(tickets_, place); }

 private:
  CommunicatorRef comm_;
  void* tickets_;
};

/// The ranks of one group.
class Ranks {
 public:
  explicit Ranks(CommunicatorRef comm) : comm_(comm) {}

  [[nodiscard]] CommunicatorRef const& ref() const noexcept { return comm_; }
  [[nodiscard]] int rank() const noexcept { return comm_.rank; }
  [[nodiscard]] int size() const noexcept { return comm_.size; }
  /// For collectives that are waited for later.
  [[nodiscard]] Tickets tickets(std::size_t places) const { return {comm_, places}; }
  /// Starts a collective and waits for it. Collective; blocks.
  void run(Collective const& op) { comm_.calls->run(comm_.comm, op); }
  void progress() const noexcept {
    if (comm_.calls->progress != nullptr) comm_.calls->progress(comm_.comm);
  }
  [[nodiscard]] std::uint64_t held() const {
    return comm_.calls->held == nullptr ? 0 : comm_.calls->held(comm_.comm);
  }
  /// Throws if what was read from the space may be of no collective that took place.
  void confirm() const {
    if (comm_.calls->confirm != nullptr) comm_.calls->confirm(comm_.comm);
  }
  /// Not zero once the group has ended, in the memory of the space; null where the host sees it.
  [[nodiscard]] std::int64_t const* ended() const {
    return comm_.calls->ended == nullptr ? nullptr : comm_.calls->ended(comm_.comm);
  }
  [[nodiscard]] std::string_view name() const {
    return comm_.calls->group_name == nullptr ? std::string_view()
                                              : comm_.calls->group_name(comm_.comm);
  }
  [[nodiscard]] bool adds_squares() const noexcept { return comm_.calls->adds_squares; }

 private:
  CommunicatorRef comm_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
