/// @file
/// The collectives under way on one rank.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/route.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/reduce.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Bytes of one source that are worked on between two looks at everything else under way.
inline constexpr std::size_t part_bytes = 256 * KiB;

/// Bytes that went one way or another on this rank.
struct Moved {
  std::uint64_t direct = 0;     ///< read from peers' memory
  std::uint64_t exchanged = 0;  ///< received in chunks
  std::uint64_t node_sums = 0;  ///< sent as sums of this node, or up to it
  std::uint64_t native = 0;     ///< reduced by MPI
};

/// Chunks between two ranks travel in the order of the calls: of which collective the next are.
struct Turns {
  explicit Turns(int size) : next_in(static_cast<std::size_t>(size)), next_out(next_in) {}
  std::vector<std::uint64_t> next_in;   ///< by source
  std::vector<std::uint64_t> next_out;  ///< by target
};

/// How far this rank has come with one collective.
struct Flight {
  /// How far it has come with one peer, in elements of the present pass.
  struct Pair {
    std::size_t in = 0;
    std::size_t out = 0;
    int out_pass = 0;
  };

  /// A place in what a rank adds for others.
  struct Place {
    int target = 0;      ///< whose result it is
    std::size_t at = 0;  ///< elements of it that are passed on
  };

  std::uint64_t sequence = never;
  Collective op{};
  Route route{};
  std::byte const* send = nullptr;  ///< the send buffer, or its copy
  std::size_t at = 0;               ///< elements of a sum that are done
  Place chain{};                    ///< what this rank adds to next in a chain
  kernel::SquaredSum squared{};     ///< if squares are asked for
  int pass = 0;
  bool matched = false;    ///< all ranks have started it and agree
  bool received = false;   ///< the result is complete
  bool told = false;       ///< peers know that this rank reads nothing more of theirs
  bool complete = false;   ///< and peers have what they need of this rank's
  bool withdrawn = false;  ///< nobody waits for it: its buffers may be gone
  std::vector<Pair> pairs{};

  void begin(Collective const& what, std::uint64_t number) {
    sequence = number;
    op = what;
    route = {};
    squared = {.squares = what.squares, .left = what.squares_count};
    at = 0;
    chain = {};
    pass = 0;
    matched = received = told = complete = withdrawn = false;
  }
  void receive_last() {
    received = true;
    squared.end();
  }
};

/// The last `ring_slots` collectives that this rank has started.
class Flights {
 public:
  explicit Flights(int size) : size_(static_cast<std::size_t>(size)) { spare_.reserve(ring_slots); }

  /// How many were started.
  [[nodiscard]] std::uint64_t posted() const noexcept { return posted_; }
  /// The first that is not done.
  [[nodiscard]] std::uint64_t oldest() const noexcept { return oldest_; }
  [[nodiscard]] bool none() const noexcept { return oldest_ == posted_; }
  [[nodiscard]] Flight& at(std::uint64_t sequence) noexcept {
    return flights_[static_cast<std::size_t>(sequence % ring_slots)];
  }
  [[nodiscard]] bool done(std::uint64_t sequence) noexcept {
    Flight const& flight = at(sequence);
    return flight.sequence != sequence || flight.complete;
  }

  /// Allocates if there were never as many under way.
  Flight& begin(Collective const& op) {
    Flight& flight = at(posted_);
    flight.begin(op, posted_++);
    if (!spare_.empty()) {
      flight.pairs = std::move(spare_.back());
      spare_.pop_back();
    }
    flight.pairs.assign(size_, {});
    return flight;
  }
  /// Forgets what is done.
  void retire() noexcept {
    for (; oldest_ < posted_ && at(oldest_).complete; ++oldest_) {
      spare_.push_back(std::move(at(oldest_).pairs));
    }
  }

 private:
  std::size_t size_;
  Flight flights_[ring_slots];
  std::vector<std::vector<Flight::Pair>> spare_;  ///< of collectives that are done
  std::uint64_t posted_ = 0;
  std::uint64_t oldest_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
