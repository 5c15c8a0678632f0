/// @file
/// The collectives under way on one rank.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/hash.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/route.hpp"
#include "zero/comm/mpi/schedule.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/reduce.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What is to be done for a collective, and how much of it was: lists, whose memory serves again.
struct FlightLists {
  /// With one task.
  struct TaskProgress {
    std::size_t at = 0;  ///< elements that are done
    bool over = false;
  };
  enum Way : std::uint8_t { in, out };
  /// Tasks that take chunks from one peer, or give it some: in order, from `next` up to `end`.
  struct TaskQueue {
    std::uint32_t next = 0;
    std::uint32_t end = ~std::uint32_t{0};  ///< a local peer's is known with where its buffers are
  };
  /// With one peer.
  struct Pair {
    TaskQueue queues[2] = {};  ///< by Way
    bool headed = false;       ///< the peer was sent this call
    bool agrees = false;       ///< a local peer has made the same call
  };

  Schedule schedule{};
  std::vector<TaskProgress> places{};  ///< by task
  std::vector<Pair> pairs{};           ///< by peer
};

/// How far this rank has come with one collective.
struct CallInFlight : FlightLists {
  std::uint64_t number = never;
  Collective op{};
  Head head{};
  Route route{};
  std::byte const* send = nullptr;  ///< the send buffer, or its copy
  kernel::SquaredSum squared{};     ///< if squares are asked for
  int pass = 0;
  std::size_t results_left = 0;  ///< tasks of this pass whose outcome this rank keeps
  std::size_t tasks_left = 0;
  int local_left = 0;      ///< local peers whose calls were not compared
  bool received = false;   ///< the result is complete
  bool announced = false;  ///< peers know that this rank reads nothing more of theirs
  bool complete = false;   ///< and peers have what they need of this rank's
  bool withdrawn = false;  ///< nobody waits for it: its buffers may be gone
};

/// That a rank has called something else.
struct Disagreement {
  std::uint64_t number = never;  ///< of the collective, or of a later one that showed it
  int peer = -1;                 ///< whose call it was
  bool known = false;            ///< is that the peer's call of this number?
  Call call{};
};

/// The last `ring_slots` collectives that this rank has started.
class Flights {
 public:
  Flights() { spare_.reserve(ring_slots); }

  /// How many were started.
  [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }
  /// The first that is not done.
  [[nodiscard]] std::uint64_t oldest() const noexcept { return oldest_; }
  [[nodiscard]] bool none() const noexcept { return oldest_ == posted_; }
  [[nodiscard]] CallInFlight& at(std::uint64_t number) noexcept {
    return flights_[static_cast<std::size_t>(number % ring_slots)];
  }
  [[nodiscard]] bool done(std::uint64_t number) noexcept {
    CallInFlight const& flight = at(number);
    return flight.number != number || flight.complete;
  }

  /// Allocates if there were never as many under way, or none with so many tasks.
  CallInFlight& begin(Collective const& op, Routing const& routing, int rank, std::size_t chunk) {
    CallInFlight& flight = at(posted_);
    if (!spare_.empty()) {
      static_cast<FlightLists&>(flight) = std::move(spare_.back());
      spare_.pop_back();
    }
    flight.number = posted_++;
    flight.op = op;
    flight.head = {.number = flight.number, .before = calls_.value(), .call = call_of(op)};
    calls_.add(&flight.head.call, sizeof flight.head.call);
    flight.route = routing.of(op);
    flight.schedule.build(op, flight.route, routing.topology(), rank, chunk);
    flight.squared = {.squares = op.squares, .left = op.squares_count};
    flight.pass = 0;
    flight.received = flight.announced = flight.complete = flight.withdrawn = false;
    return flight;
  }
  /// Forgets what is done, but for what it was.
  void retire() noexcept {
    while (!none() && at(oldest_).complete) spare_.push_back(std::move(at(oldest_++)));
  }

  void disagree(Disagreement const& found) noexcept {
    if (disagreement_.number == never) disagreement_ = found;
  }
  /// The first that was found.
  [[nodiscard]] Disagreement const& disagreement() const noexcept { return disagreement_; }

 private:
  CallInFlight flights_[ring_slots];
  std::vector<FlightLists> spare_;  ///< of collectives that are done
  std::uint64_t posted_ = 0;
  std::uint64_t oldest_ = 0;
  zero::detail::Hash calls_{};  ///< all of them
  Disagreement disagreement_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
