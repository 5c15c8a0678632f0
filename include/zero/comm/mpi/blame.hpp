/// @file
/// Words for a wait that comes to nothing.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/exchange.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/roll.hpp"
#include "zero/comm/shared/failure.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Finds out by what this rank has seen of its peers which of them keeps it waiting.
class Blame {
 public:
  Blame(Peers const& peers, Roll const& roll, Exchange const& exchange, Flights& flights)
      : peers_(&peers), roll_(&roll), exchange_(&exchange), flights_(&flights) {}

  /// Names who did not arrive at the oldest collective, or arrived and then fell silent.
  /// @param seconds  for which nothing has moved
  /// @param patience  how many ranks may stand between: beyond 0 it also blames ranks that may be
  ///   waiting for others themselves, since who waits for the culprit itself should speak first
  /// @return empty if this rank cannot tell yet; something has to be under way
  [[nodiscard]] ZERO_COLD std::string find(double seconds, int patience) const {
    bool const anyhow = patience > 0;
    Flight const& flight = flights_->at(flights_->oldest());
    std::string const what = " fell silent for " + std::to_string(seconds) + " s in [" +
                             zero::detail::describe_call(flight.op) + "]";
    if (!flight.matched) {
      if (least_posted() <= flight.sequence) return not_arrived(flight.sequence, seconds, anyhow);
      if (!anyhow) return {};
      // All have started it, and somebody who passes calls on does not.
      std::string const silent = ranks_that([&](int peer) {
        return peers_->is_leader(peer) && !roll_->is_attentive(peer, flight.sequence);
      });
      return (silent.empty() ? "every rank" : silent) + what;
    }
    if (flight.route.by_library && !flight.received) {
      // Who is behind this rank is not where this rank waits, whatever MPI does.
      std::uint64_t const least = least_posted();
      if (least < flights_->posted()) return not_arrived(least, seconds, anyhow);
      return "some rank" + what + ", which MPI reduces: MPI does not tell which rank";
    }
    for (int distance = 0; distance <= patience; ++distance) {
      std::string const silent =
          ranks_that([&](int peer) { return exchange_->distance(flight, peer) == distance; });
      if (!silent.empty()) return silent + what;
    }
    return patience < exchange_->longest_distance(flight) ? std::string() : "every rank" + what;
  }

 private:
  /// Collectives that every rank has started.
  [[nodiscard]] std::uint64_t least_posted() const noexcept {
    std::uint64_t least = never;
    for (int peer = 0; peer < peers_->size(); ++peer) {
      least = (std::min)(least, roll_->posted_by(peer));
    }
    return least;
  }
  [[nodiscard]] std::string not_arrived(std::uint64_t sequence, double seconds, bool anyhow) const {
    zero::detail::Failure failure{.cause = zero::detail::Failure::Cause::late,
                                  .call = flights_->at(sequence).op,
                                  .seconds = seconds};
    for (int peer = peers_->size() - 1; peer >= 0; --peer) {
      if (roll_->posted_by(peer) > sequence) continue;
      if (!anyhow && peers_->is_waiting(peer)) continue;
      failure.more += failure.rank >= 0 ? 1 : 0;
      failure.rank = peers_->world_rank(peer);
    }
    return failure.rank < 0 ? std::string() : zero::detail::describe(failure);
  }
  template <class Condition>
  [[nodiscard]] ZERO_COLD std::string ranks_that(Condition const& condition) const {
    std::string names;
    for (int peer = 0; peer < peers_->size(); ++peer) {
      if (peer == peers_->rank() || !condition(peer)) continue;
      names += (names.empty() ? "rank " : ", rank ") + std::to_string(peers_->world_rank(peer));
    }
    return names;
  }

  Peers const* peers_;
  Roll const* roll_;
  Exchange const* exchange_;
  Flights* flights_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
