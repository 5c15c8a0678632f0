/// @file
/// The calls of all nodes on every node, in few messages.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/family.hpp"
#include "zero/comm/mpi/inquiry.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/requests.hpp"
#include "zero/comm/mpi/summary.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Tells every node the calls of all others: in round k of ceil(log2 nodes) a node tells the one
/// 2^k further on what it knows by then. The leader of a node does so for all of its ranks and
/// leaves the outcome in its control block, where the others read it; they have no rounds.
///
/// Messages of one round come in the order of the calls, so that counters say what has come.
class Dissemination {
 public:
  Dissemination(MPI_Comm comm, Peers const& peers) : peers_(&peers), requests_(comm) {
    if (peers.leader() != peers.rank()) return;
    Topology const& topology = peers.topology();
    std::size_t const nodes = topology.nodes();
    std::size_t const node = topology.node(peers.rank());
    for (int round = 0; round < detail::rounds(nodes); ++round) {
      rounds_.push_back({.source = topology.ranks(telling_in(round, node, nodes)).front(),
                         .target = topology.ranks(told_in(round, node, nodes)).front()});
    }
    requests_.memory().in.resize(rounds_.size());
    requests_.memory().out.resize(rounds_.size());
    requests_.add(rounds_.size(), rounds_.size());
    known_.resize(ring_slots);
    for (std::size_t round = 0; round < rounds_.size(); ++round) {
      check(receive(round), "MPI_Irecv");
    }
  }

  /// Bytes that a leader holds among so many nodes.
  [[nodiscard]] static constexpr std::size_t planned_bytes(std::size_t nodes) noexcept {
    return (ring_slots + 2 * static_cast<std::size_t>(detail::rounds(nodes))) * sizeof(Summary);
  }
  [[nodiscard]] std::size_t held() const noexcept {
    return (known_.size() + 2 * rounds_.size()) * sizeof(Summary);
  }
  /// Messages that this rank has sent.
  [[nodiscard]] std::uint64_t sent() const noexcept { return sent_; }

  /// Takes what has come, sends what is due, publishes what is known of all; true if a message came
  /// or left.
  /// @param oldest  the first collective that is not done here: no more are taken than have slots
  bool advance(std::uint64_t oldest, int& error) {
    if (rounds_.empty()) return false;
    bool const moved = poll(error);
    for (std::size_t round = 0; round < rounds_.size() && error == MPI_SUCCESS; ++round) {
      take(round, oldest, error);
    }
    for (std::uint64_t const near = peers_->posted_near(); gathered_ < near; ++gathered_) {
      known(gathered_).add(peers_->calls_near(gathered_));
    }
    for (std::size_t round = 0; round < rounds_.size() && error == MPI_SUCCESS; ++round) {
      tell(round, error);
    }
    while (complete_ < gathered_ && heard(complete_, rounds_.size()) && told(complete_)) publish();
    return moved;
  }

  /// True once MPI holds nothing that this rank has sent for a collective or one before.
  [[nodiscard]] bool has_delivered(std::uint64_t sequence, int& error) {
    for (std::size_t round = 0; round < rounds_.size(); ++round) {
      if (delivers(round) && requests_.memory().out[round].call.sequence <= sequence) {
        poll(error);
        return false;
      }
    }
    return true;
  }

  /// Collectives that are published.
  [[nodiscard]] std::uint64_t complete() const noexcept { return complete_; }
  /// Learns all calls of the next that is not, another way; what rounds tell later is nothing new.
  void learn(Summary const& all) {
    known(complete_).add(all);
    learned_ = complete_ + 1;
  }

  /// Calls that the ranks of the node before are known to have made.
  [[nodiscard]] std::uint64_t before() const noexcept { return rounds_.front().heard; }
  /// Puts into a notice what is known of the collective in question, which is not published.
  void tell(Notice& notice) {
    std::uint64_t const sequence = notice.sequence;
    notice.known = known(sequence);
    notice.heard = gathered_ > sequence ? 1 : 0;
    for (std::size_t round = 0; round < rounds_.size(); ++round) {
      if (rounds_[round].heard > sequence) notice.heard |= 2u << round;
    }
  }

  void cancel() noexcept { requests_.cancel(); }
  [[nodiscard]] bool settled() noexcept { return requests_.settled(); }
  void forsake() noexcept { requests_.forsake(); }

 private:
  struct Memory {
    std::vector<Summary> in;
    std::vector<Summary> out;
  };
  struct Round {
    int source = 0;
    int target = 0;
    bool here = false;        ///< has a message come that was not taken?
    std::uint64_t heard = 0;  ///< collectives of which its message was taken
    std::uint64_t told = 0;   ///< of which one was sent
  };

  bool poll(int& error) {
    return requests_.poll(error, [&](std::size_t number, MPI_Status const& /*status*/) {
      if (number < rounds_.size()) rounds_[number].here = true;
    });
  }
  /// What is known of a collective.
  [[nodiscard]] Summary& known(std::uint64_t sequence) noexcept {
    Summary& result = known_[static_cast<std::size_t>(sequence % ring_slots)];
    if (result.rank < 0 || result.call.sequence != sequence) result = {};
    return result;
  }
  /// True if the first so many rounds have told what they tell of a collective.
  [[nodiscard]] bool heard(std::uint64_t sequence, std::size_t rounds) const noexcept {
    return sequence < learned_ ||
           std::all_of(rounds_.begin(),
                       rounds_.begin() + static_cast<std::ptrdiff_t>(rounds),
                       [&](Round const& round) { return round.heard > sequence; });
  }
  [[nodiscard]] bool told(std::uint64_t sequence) const noexcept {
    return std::all_of(
        rounds_.begin(), rounds_.end(), [&](Round const& round) { return round.told > sequence; });
  }
  [[nodiscard]] bool delivers(std::size_t round) const noexcept {
    return requests_.under_way(rounds_.size() + round);
  }

  void take(std::size_t number, std::uint64_t oldest, int& error) {
    Round& round = rounds_[number];
    Summary const& message = requests_.memory().in[number];
    std::uint64_t const sequence = message.call.sequence;
    if (!round.here || sequence >= oldest + ring_slots) return;
    if (sequence >= complete_) known(sequence).add(message);
    round.heard = sequence + 1;
    round.here = false;
    error = receive(number);
  }
  void tell(std::size_t number, int& error) {
    Round& round = rounds_[number];
    if (round.told == gathered_ || !heard(round.told, number) || delivers(number)) return;
    Summary& message = requests_.memory().out[number];
    message = known(round.told++);
    ++sent_;
    std::size_t const at = rounds_.size() + number;
    error = requests_.send(at, &message, sizeof(Summary), round.target, round_tag);
    if (error == MPI_SUCCESS) error = requests_.look(at);
  }
  void publish() {
    Slot& slot = peers_->own().slot(complete_);
    slot.summary = known(complete_);
    slot.summed.store(++complete_, std::memory_order_release);
  }
  int receive(std::size_t round) {
    return requests_.receive(
        round, &requests_.memory().in[round], sizeof(Summary), rounds_[round].source, round_tag);
  }

  Peers const* peers_;
  std::vector<Round> rounds_;
  Requests<Memory> requests_;
  std::vector<Summary> known_;  ///< of collectives under way, by slot
  std::uint64_t gathered_ = 0;  ///< collectives that all ranks of this node have started
  std::uint64_t complete_ = 0;  ///< that are published
  std::uint64_t learned_ = 0;   ///< that need no rounds any more to be known
  std::uint64_t sent_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
