/// @file
/// Sums in rank order that travel from node to node.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/mpi/channels.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/sources.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/partial_sum.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Carries a sum along the nodes, which hold consecutive ranks. For every target one rank of each
/// node adds what its node gives to the partial sum from the node before, and sends that to its
/// like in the next node; the one in the last node rounds, and sends the result to the target.
///
/// Every rank takes the targets that it adds for in ascending order, piece by piece. So the first
/// piece that is not done anywhere waits for nothing, and all nodes are at work at once.
class Chain {
 public:
  /// @param turns  kept by the exchange, which lets no later collective overtake this one
  Chain(Peers const& peers,
        Sources const& sources,
        Channels& channels,
        Board const& board,
        Turns const& turns,
        Moved& moved)
      : peers_(&peers),
        sources_(&sources),
        channels_(&channels),
        board_(&board),
        turns_(&turns),
        moved_(&moved) {
    inputs_.reserve(index(peers.size()) + 1);
  }

  /// Works on one piece for others and one of this rank's own result; true if anything moved.
  bool advance(Flight& flight, int& error) {
    bool const passed = pass_on(flight, error);
    return receive(flight, error) || passed;
  }
  /// True once this rank has passed on all that goes through it.
  [[nodiscard]] bool is_through(Flight const& flight) const noexcept {
    return flight.chain.target == peers_->size();
  }
  /// True once this rank has its own result, too.
  [[nodiscard]] bool is_done(Flight const& flight) const noexcept {
    return is_through(flight) && flight.at == block(flight, peers_->rank()).count;
  }

  /// See Exchange. A node waits for those before it while nothing comes, then for those behind it.
  [[nodiscard]] int distance(Flight const& flight, int peer) const {
    std::size_t bytes = 0;
    auto const there = static_cast<int>(topology().node(peer));
    if (awaits(flight) == peer && chunk_from(flight, peer, bytes) == nullptr) {
      return (std::min)(there, longest_distance());
    }
    bool const takes = channels_->delivers(peer, flight.sequence);
    if (!takes && !peers_->reads_on(peer, flight.sequence)) return -1;
    return (std::min)(2 * static_cast<int>(topology().nodes()) - there, longest_distance());
  }
  /// Short enough for all to have spoken within a second.
  [[nodiscard]] int longest_distance() const noexcept {
    return (std::min)(2 * static_cast<int>(topology().nodes()), 10);
  }
  /// True if chunks that come from a rank may belong to this sum. Exact once all is passed on.
  [[nodiscard]] bool expects(Flight const& flight, int source) const noexcept {
    return is_through(flight) ? awaits(flight) == source : !peers_->is_near(source);
  }

 private:
  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  /// The rank whose chunk is needed next, or -1.
  [[nodiscard]] int awaits(Flight const& flight) const noexcept {
    if (!is_through(flight)) return is_first() ? -1 : stand_in(node() - 1, flight.chain.target);
    return is_done(flight) ? -1 : stand_in(topology().nodes() - 1, peers_->rank());
  }
  [[nodiscard]] Topology const& topology() const noexcept { return peers_->topology(); }
  [[nodiscard]] std::size_t node() const noexcept { return topology().node(peers_->rank()); }
  [[nodiscard]] bool is_first() const noexcept { return node() == 0; }
  [[nodiscard]] bool is_last() const noexcept { return node() + 1 == topology().nodes(); }
  /// The rank of a node that adds for a target; in the target's own node the target.
  [[nodiscard]] int stand_in(std::size_t node, int target) const noexcept {
    return topology().delegate(node, target);
  }
  [[nodiscard]] Transfer block(Flight const& flight, int target) const noexcept {
    return transfer(flight.op, 0, target, target, peers_->size());
  }
  [[nodiscard]] std::byte* result(Flight const& flight) const noexcept {
    std::size_t const at = block(flight, peers_->rank()).to + flight.at;
    return static_cast<std::byte*>(flight.op.recv) + at * size_of(flight.op.dtype);
  }

  /// Adds one piece to what came from the node before, for the next node, the target or itself.
  bool pass_on(Flight& flight, int& error) {
    find_target(flight);
    if (is_through(flight)) return false;
    Collective const& op = flight.op;
    Flight::Place& place = flight.chain;
    Transfer const whole = block(flight, place.target);
    DType const sent = is_last() ? op.dtype : op.accumulate;
    std::size_t now =
        (std::min)(piece_bytes(flight) / size_of(op.accumulate), whole.count - place.at);
    int const from = awaits(flight);
    inputs_.assign(1, nullptr);
    if (!is_first()) {
      std::size_t bytes = 0;
      inputs_[0] = chunk_from(flight, from, bytes);
      if (inputs_[0] == nullptr) return false;
      now = bytes / size_of(op.accumulate);
    }
    int const to = is_last() ? place.target : stand_in(node() + 1, place.target);
    bool const own = to == peers_->rank();
    std::byte* const out = own ? result(flight) : room_for(flight, to);
    if (out == nullptr) return false;
    for (int const rank : topology().ranks(node())) {
      std::size_t const at = (whole.from + place.at) * size_of(op.dtype);
      inputs_.push_back(sources_->seen(flight, {whole, rank}) + at);
    }
    kernel::SquaredSum none;
    kernel::add_to_partial(
        op.dtype, op.accumulate, out, is_last(), inputs_, now, own ? flight.squared : none);
    if (!board_->is_sound()) return false;
    moved_->direct += (inputs_.size() - 2) * now * size_of(op.dtype);
    if (own) {
      flight.at += now;
    } else {
      moved_->node_sums += now * size_of(sent);
      note(channels_->send_chunk(to, flight.sequence, now * size_of(sent)), error);
    }
    if (!is_first()) {
      moved_->exchanged += now * size_of(op.accumulate);
      note(channels_->take_chunk(from), error);
    }
    place.at += now;
    find_target(flight);
    return true;
  }

  /// Takes one piece of this rank's result from the last node.
  bool receive(Flight& flight, int& error) {
    if (is_last() || flight.at == block(flight, peers_->rank()).count) return false;
    int const source = stand_in(topology().nodes() - 1, peers_->rank());
    std::size_t bytes = 0;
    std::byte const* const chunk = chunk_from(flight, source, bytes);
    if (chunk == nullptr) return false;
    std::size_t const count = bytes / size_of(flight.op.dtype);
    std::memcpy(result(flight), chunk, bytes);
    flight.squared.add(flight.op.dtype, chunk, count);
    flight.at += count;
    moved_->exchanged += bytes;
    note(channels_->take_chunk(source), error);
    return true;
  }

  /// Bytes that travel at a time: on an even layout all nodes but the first idle for a 16th of the
  /// time until the first piece has come to the last.
  [[nodiscard]] std::size_t piece_bytes(Flight const& flight) const noexcept {
    std::size_t const whole = block(flight, 0).count * size_of(flight.op.accumulate);
    return (std::min)(static_cast<std::size_t>(zero::detail::chain_piece(whole)),
                      channels_->chunk_bytes());
  }
  /// Goes on to the next target of which something is to be added here.
  void find_target(Flight& flight) const noexcept {
    Flight::Place& place = flight.chain;
    while (!is_through(flight)) {
      bool const here = stand_in(node(), place.target) == peers_->rank();
      if (here && place.at < block(flight, place.target).count) return;
      ++place.target;
      place.at = 0;
    }
  }
  [[nodiscard]] std::byte const* chunk_from(Flight const& flight,
                                            int source,
                                            std::size_t& bytes) const {
    if (turns_->next_in[index(source)] != flight.sequence) return nullptr;
    return channels_->chunk_from(source, bytes);
  }
  [[nodiscard]] std::byte* room_for(Flight const& flight, int target) const {
    if (turns_->next_out[index(target)] != flight.sequence) return nullptr;
    return channels_->room_for(target);
  }
  static void note(int code, int& error) noexcept {
    if (code != MPI_SUCCESS) error = code;
  }

  Peers const* peers_;
  Sources const* sources_;
  Channels* channels_;
  Board const* board_;
  Turns const* turns_;
  Moved* moved_;
  std::vector<void const*> inputs_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
