/// @file
/// Moving the data of collectives under way: reading, receiving, adding, sending.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/mpi/chain.hpp"
#include "zero/comm/mpi/channels.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/library.hpp"
#include "zero/comm/mpi/native.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/sources.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Every rank writes its own results: it reads what lies in a peer's memory where it is, and
/// receives the rest chunk by chunk.
///
/// Chunks between two ranks travel in the order of the calls, so both sides know which collective a
/// chunk belongs to. What needs no chunks overtakes what does.
class Exchange {
 public:
  /// @param board   of the family, on which failures are written
  /// @param native  null if the library adds everything itself
  Exchange(Peers const& peers,
           Sources const& sources,
           Channels& channels,
           Flights& flights,
           Board const& board,
           std::unique_ptr<NativeReduction> native)
      : peers_(&peers),
        sources_(&sources),
        channels_(&channels),
        flights_(&flights),
        board_(&board),
        native_(std::move(native)),
        turns_(peers.size()),
        chain_(peers, sources, channels, board, turns_, moved_) {
    inputs_.reserve(index(peers.size()));
  }

  /// Bytes for MPI's reductions.
  [[nodiscard]] std::size_t held() const noexcept {
    return native_ != nullptr ? native_->held() : 0;
  }
  [[nodiscard]] Moved const& moved() const noexcept { return moved_; }
  void close() {
    if (native_ != nullptr) native_->close();
  }

  /// Works on what this rank gets, at most a part of each source; true if anything moved.
  bool receive(Flight& flight, int& error) {
    if (flight.received) return false;
    if (flight.route.by_library) return reduce_by_library(flight, error);
    if (is_chained(flight, flight.pass)) {
      bool const moved = chain_.advance(flight, error);
      return chain_.is_done(flight) ? end_pass(flight) : moved;
    }
    return is_sum(flight.op, flight.pass) ? add(flight, error) : copy(flight, error);
  }

  /// Sends chunks to a peer while there is room, in the order of the calls.
  bool send(int peer, int& error) {
    bool moved = false;
    for (; turns_.next_out[index(peer)] < flights_->posted(); ++turns_.next_out[index(peer)]) {
      Flight& flight = flights_->at(turns_.next_out[index(peer)]);
      if (!flight.matched || flight.withdrawn) return moved;
      if (flight.route.chained && !chain_.is_through(flight)) return moved;
      Flight::Pair& pair = flight.pairs[index(peer)];
      for (; pair.out_pass < passes(flight); ++pair.out_pass, pair.out = 0) {
        Hop const hop = sources_->hop(flight, pair.out_pass, peers_->rank(), peer);
        if (!is_sent(flight, hop, peers_->rank(), peer)) continue;
        if (pair.out_pass > flight.pass) return moved;
        std::size_t const element = size_of(flight.op.dtype);
        while (pair.out < hop.part.count) {
          std::byte* const room = channels_->room_for(peer);
          if (room == nullptr) return moved;
          std::size_t const now =
              (std::min)(channels_->chunk_bytes() / element, hop.part.count - pair.out);
          fill(room, flight, hop, pair.out_pass, pair.out, now);
          if (!board_->is_sound()) return moved;
          if (int const code = channels_->send_chunk(peer, flight.sequence, now * element);
              code != MPI_SUCCESS) {
            error = code;
            return moved;
          }
          pair.out += now;
          moved = true;
        }
      }
    }
    return moved;
  }

  /// Moves on to the next collective of which a peer sends chunks.
  void skip_received(int peer) {
    for (std::uint64_t& turn = turns_.next_in[index(peer)]; turn < flights_->posted(); ++turn) {
      Flight const& flight = flights_->at(turn);
      if (flight.received) continue;
      if (!flight.matched || expects(flight, peer)) return;
    }
  }

  /// True once nothing of a collective is to be sent any more, to anybody; MPI may hold some of it.
  [[nodiscard]] bool has_sent(Flight const& flight) const noexcept {
    return std::all_of(turns_.next_out.begin(), turns_.next_out.end(), [&](std::uint64_t turn) {
      return turn > flight.sequence;
    });
  }
  /// How many ranks may stand between this one and who keeps a collective waiting, if it waits for
  /// a peer: 0 for what the peer gives without waiting itself; -1 if it does not wait for it.
  [[nodiscard]] int distance(Flight const& flight, int peer) const {
    if (is_chained(flight, flight.pass)) return chain_.distance(flight, peer);
    bool const expected = !flight.received && expects(flight, flight.pass, peer);
    if (expected && !sources_->hop(flight, flight.pass, peer, peers_->rank()).part.result) return 0;
    bool const waits = expected || turns_.next_out[index(peer)] <= flight.sequence ||
                       channels_->delivers(peer, flight.sequence) ||
                       peers_->reads_on(peer, flight.sequence);
    return waits ? 1 : -1;
  }
  /// The longest distance.
  [[nodiscard]] int longest_distance(Flight const& flight) const noexcept {
    return is_chained(flight, flight.pass) ? chain_.longest_distance() : 1;
  }

 private:
  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }
  [[nodiscard]] bool is_streaming(Collective const& op) const noexcept {
    return kernel::is_streaming(kernel::Store::automatic,
                                zero::detail::larger_bytes(op, peers_->size()));
  }
  [[nodiscard]] static int passes(Flight const& flight) noexcept {
    return detail::passes(flight.op, flight.route);
  }
  [[nodiscard]] static bool is_chained(Flight const& flight, int pass) noexcept {
    return flight.route.chained && is_sum(flight.op, pass);
  }
  [[nodiscard]] bool is_sent(Flight const& flight, Hop const& hop, int source, int target) const {
    return !flight.route.by_library && sources_->is_sent(flight, hop, source, target);
  }

  /// MPI takes reductions in the order of the calls on every rank.
  bool reduce_by_library(Flight& flight, int& error) {
    native_turn_ = (std::max)(native_turn_, flights_->oldest());
    while (native_turn_ < flight.sequence) {
      Flight const& before = flights_->at(native_turn_);
      if (!before.matched || (before.route.by_library && !before.received)) return false;
      ++native_turn_;
    }
    std::size_t const before = flight.at;
    if (flight.at < flight.op.count) {
      if (!native_->advance(flight.op, flight.at, error)) return false;
      moved_.native += (flight.at - before) * size_of(flight.op.dtype);
      flight.squared.add(
          flight.op.dtype,
          static_cast<std::byte*>(flight.op.recv) + before * size_of(flight.op.dtype),
          flight.at - before);
    }
    if (flight.at == flight.op.count) flight.receive_last();
    return true;
  }

  /// One chunk or part of a sum, once all sources are there.
  bool add(Flight& flight, int& error) {
    int const rank = peers_->rank();
    std::size_t const element = size_of(flight.op.dtype);
    Transfer const own = transfer(flight.op, 0, rank, rank, peers_->size());
    if (flight.at == own.count) return end_pass(flight);
    std::size_t now = (std::min)(part_bytes / element, own.count - flight.at);
    for (int source = 0; source < peers_->size(); ++source) {
      if (!is_sent(flight, sources_->hop(flight, 0, source, rank), source, rank)) continue;
      if (turns_.next_in[index(source)] != flight.sequence) return false;
      std::size_t bytes = 0;
      if (channels_->chunk_from(source, bytes) == nullptr) return false;
      now = bytes / element;
    }
    inputs_.clear();
    for (int source = 0; source < peers_->size(); ++source) {
      Hop const hop = sources_->hop(flight, 0, source, rank);
      if (hop.part.count == 0) continue;
      std::size_t bytes = 0;
      bool const sent = is_sent(flight, hop, source, rank);
      inputs_.push_back(sent ? channels_->chunk_from(source, bytes)
                             : sources_->seen(flight, hop) + (hop.part.from + flight.at) * element);
      if (source != rank) (sent ? moved_.exchanged : moved_.direct) += now * element;
    }
    bool const stream = is_streaming(flight.op);
    auto const store = stream ? kernel::Store::streaming : kernel::Store::cached;
    auto* const out = static_cast<std::byte*>(flight.op.recv) + (own.to + flight.at) * element;
    add_inputs(flight.op, out, now, store, flight.squared);
    flight.at += now;
    for (int source = 0; source < peers_->size(); ++source) {
      if (!is_sent(flight, sources_->hop(flight, 0, source, rank), source, rank)) continue;
      flight.pairs[index(source)].in = flight.at;
      if (int const code = channels_->take_chunk(source); code != MPI_SUCCESS) error = code;
    }
    if (flight.at == own.count) end_pass(flight);
    return true;
  }

  /// One chunk or part of what each source gives.
  bool copy(Flight& flight, int& error) {
    bool moved = false;
    bool finished = true;
    int const rank = peers_->rank();
    std::size_t const element = size_of(flight.op.dtype);
    for (int turn = 0; turn < peers_->size(); ++turn) {
      int const source = (rank + turn) % peers_->size();
      Hop const hop = sources_->hop(flight, flight.pass, source, rank);
      std::size_t& at = flight.pairs[index(source)].in;
      if (at >= hop.part.count) continue;
      auto* const to = static_cast<std::byte*>(flight.op.recv) + (hop.part.to + at) * element;
      std::size_t now = (std::min)(part_bytes / element, hop.part.count - at);
      std::byte const* from = nullptr;
      if (is_sent(flight, hop, source, rank)) {
        std::size_t bytes = 0;
        if (turns_.next_in[index(source)] == flight.sequence) {
          from = channels_->chunk_from(source, bytes);
        }
        if (from == nullptr) {
          finished = false;
          continue;
        }
        now = bytes / element;
        kernel::copy(to, from, bytes, kernel::Store::cached);
        moved_.exchanged += bytes;
        if (int const code = channels_->take_chunk(source); code != MPI_SUCCESS) error = code;
      } else {
        if (!sources_->is_ready(flight, hop)) {
          finished = false;
          continue;
        }
        bool const stream = is_streaming(flight.op);
        kernel::copy(to,
                     sources_->seen(flight, hop) + (hop.part.from + at) * element,
                     now * element,
                     stream ? kernel::Store::streaming : kernel::Store::cached);
        if (hop.holder != rank) moved_.direct += now * element;
      }
      at += now;
      moved = true;
      finished = finished && at == hop.part.count;
    }
    if (finished) return end_pass(flight);
    return moved;
  }

  bool end_pass(Flight& flight) {
    kernel::publish_streaming_stores();
    if (flight.pass + 1 == passes(flight)) {
      flight.receive_last();
      return true;
    }
    ++flight.pass;
    flight.at = 0;
    for (Flight::Pair& pair : flight.pairs) pair.in = 0;
    peers_->own().slot(flight.sequence).pass(flight.sequence, flight.pass);
    return true;
  }

  /// The next chunk for a peer: this rank's data, or the sum of its node's.
  void fill(std::byte* room,
            Flight const& flight,
            Hop const& hop,
            int pass,
            std::size_t at,
            std::size_t count) {
    std::size_t const element = size_of(flight.op.dtype);
    std::size_t const skip = (hop.part.from + at) * element;
    Topology const& topology = peers_->topology();
    auto const& neighbours = topology.ranks(topology.node(peers_->rank()));
    if (!flight.route.by_node || pass != 0 || neighbours.size() == 1) {
      std::memcpy(room, sources_->seen(flight, hop) + skip, count * element);
      return;
    }
    inputs_.clear();
    for (int const rank : neighbours) {
      inputs_.push_back(sources_->seen(flight, {hop.part, rank}) + skip);
    }
    kernel::SquaredSum none;
    add_inputs(flight.op, room, count, kernel::Store::cached, none);
    moved_.node_sums += count * element;
  }

  void add_inputs(Collective const& op,
                  void* out,
                  std::size_t count,
                  kernel::Store store,
                  kernel::SquaredSum& squared) const {
    kernel::sum_and_square(op.dtype,
                           op.accumulate,
                           out,
                           inputs_.data(),
                           0,
                           static_cast<int>(inputs_.size()),
                           count,
                           store,
                           squared);
  }

  /// True if more chunks come from a source in one pass, the present one or a later one.
  [[nodiscard]] bool expects(Flight const& flight, int pass, int source) const {
    if (is_chained(flight, pass)) return chain_.expects(flight, source);
    Hop const hop = sources_->hop(flight, pass, source, peers_->rank());
    std::size_t const got = pass == flight.pass ? flight.pairs[index(source)].in : 0;
    return got < hop.part.count && is_sent(flight, hop, source, peers_->rank());
  }
  [[nodiscard]] bool expects(Flight const& flight, int source) const {
    for (int pass = flight.pass; pass < passes(flight); ++pass) {
      if (expects(flight, pass, source)) return true;
    }
    return false;
  }

  Peers const* peers_;
  Sources const* sources_;
  Channels* channels_;
  Flights* flights_;
  Board const* board_;
  std::unique_ptr<NativeReduction> native_;
  Turns turns_;
  Moved moved_{};
  Chain chain_;
  std::vector<void const*> inputs_;
  std::uint64_t native_turn_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
