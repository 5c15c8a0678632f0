/// @file
/// A collective as a list of what one rank does for it. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/mpi/route.hpp"
#include "zero/comm/mpi/topology.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Where an input of a task comes from.
enum class From : std::uint8_t {
  send_buffer,  ///< a send buffer on this node: read where it is, or, if peers cannot see it, by a
                ///< lane
  result,       ///< a receive buffer on this node, as an earlier pass has left it: likewise
  link,         ///< a rank on another node sends it
};

/// One input of a task.
struct Input {
  int rank = 0;
  From from = From::send_buffer;
  std::uint32_t turn = 0;  ///< how many tasks before this one take something of the rank's
  std::size_t at = 0;      ///< in the rank's buffer, in elements
};

/// What a task makes of its inputs.
enum class Work : std::uint8_t {
  copy,     ///< one input
  sum,      ///< the inputs, in rank order, rounded to the collective's dtype
  partial,  ///< the same along the nodes: what the node before sends is the first input, if any
};

/// One thing that a rank does for a collective, piece by piece: it receives or reads a piece of
/// every input, adds or copies, and keeps the result or sends it.
struct Task {
  Work work = Work::copy;
  std::uint8_t pass = 0;   ///< begins when this rank has all results of earlier passes
  bool rounded = true;     ///< the sum is complete: else it travels in the accumulate dtype
  bool begins = true;      ///< of partial: no node before sends anything
  int to = 0;              ///< whom the outcome is for: this rank keeps its own
  From way = From::link;   ///< else: by a link, or by a lane if that rank cannot read it in place
  std::uint32_t turn = 0;  ///< how many tasks before this one give that rank something
  std::uint32_t first_input = 0;
  std::uint32_t inputs = 0;
  std::size_t at = 0;     ///< where this rank keeps it, in elements of the receive buffer
  std::size_t count = 0;  ///< elements; 0 for a chunk that only says that its sender has started
  std::size_t piece = 0;  ///< elements that travel at a time
};

/// An all-reduce adds, gathers, and may hand on to neighbours.
inline constexpr int most_passes = 3;

/// Tasks between two ranks, one way. Those of results come behind the others.
struct LaneTurns {
  std::uint32_t sends = 0;    ///< of what lies in send buffers, or comes by a link
  std::uint32_t results = 0;  ///< of results

  /// One more; returns how many were there before it.
  std::uint32_t add(From from) noexcept {
    return from == From::result ? sends + results++ : results + sends++;
  }
};

/// What goes between this rank and one peer.
struct PeerTraffic {
  LaneTurns in{};                ///< what this rank takes
  LaneTurns out{};               ///< what it gives
  std::uint32_t chunks_in = 0;   ///< that come by a link
  std::uint32_t chunks_out = 0;  ///< that go by a link
};

/// The list of one rank. The same call, nodes and chunk give lists of all ranks that fit each
/// other: between two ranks, chunks are given and taken in one order and of one size.
///
/// Building it again reuses its memory.
class Schedule {
 public:
  /// @param op       of which the buffers do not matter
  /// @param chunk    bytes of data that a message carries at most
  void build(
      Collective const& op, Route route, Topology const& topology, int rank, std::size_t chunk) {
    op_ = op;
    route_ = route;
    topology_ = &topology;
    rank_ = rank;
    chunk_ = chunk;
    tasks_.clear();
    inputs_.clear();
    traffic_.assign(index(topology.size()), {});
    std::fill(std::begin(results_), std::end(results_), 0u);
    int pass = 0;
    if (zero::detail::is_reduction(op.op)) {
      route.chained ? chained_sum() : flat_sum();
      ++pass;
    }
    if (pass < passes(op)) copies(pass++);
    if (route.relayed) relays(pass++);
  }
  /// A chunk without data each way, so that a peer learns of the call, if none goes there anyway.
  void add_empty(int peer, bool out, bool in) {
    if (out && traffic_[index(peer)].chunks_out == 0) {
      task(Work::copy, 0, peer, {.count = 0});
      input(rank_, From::send_buffer, 0);
    }
    if (in && traffic_[index(peer)].chunks_in == 0) {
      task(Work::copy, 0, rank_, {.count = 0});
      input(peer, From::link, 0);
    }
  }

  [[nodiscard]] std::vector<Task> const& tasks() const noexcept { return tasks_; }
  [[nodiscard]] std::span<Input const> inputs(Task const& task) const noexcept {
    return {inputs_.data() + task.first_input, task.inputs};
  }
  /// How many tasks of a pass have an outcome that this rank keeps.
  [[nodiscard]] std::uint32_t results(int pass) const noexcept { return results_[pass]; }
  [[nodiscard]] PeerTraffic const& with(int peer) const noexcept { return traffic_[index(peer)]; }

 private:
  [[nodiscard]] int size() const noexcept { return topology_->size(); }
  [[nodiscard]] bool is_remote(int rank) const noexcept {
    return !topology_->share_node(rank, rank_);
  }
  [[nodiscard]] std::size_t node() const noexcept { return topology_->node(rank_); }
  [[nodiscard]] std::vector<int> const& local_ranks() const noexcept {
    return topology_->ranks(node());
  }
  /// True if a block takes part. A collective of nothing goes the way of one with data.
  [[nodiscard]] bool moves(std::size_t count) const noexcept { return count > 0 || op_.count == 0; }

  /// What a target gets of a sum.
  [[nodiscard]] PassBlock block(int target) const noexcept {
    return block_between(op_, 0, target, target, size());
  }
  /// Does a source give anything to a target that a copy pass is about?
  [[nodiscard]] bool gives(int source, PassBlock const& part) const noexcept {
    return moves(part.count) && (op_.op != Op::broadcast || source == op_.root);
  }

  /// A sum of which every target adds all blocks at once. What others wait for comes first: chunks
  /// of one lane are taken in the order of the list.
  void flat_sum() {
    for (int target = 0; target < size(); ++target) {
      if (!is_remote(target) || !moves(block(target).count)) continue;
      task(Work::copy, 0, target, block(target));
      input(rank_, From::send_buffer, block(target).from);
    }
    if (moves(block(rank_).count)) {
      task(Work::sum, 0, rank_, block(rank_));
      for (int source = 0; source < size(); ++source) {
        input(source, is_remote(source) ? From::link : From::send_buffer, block(rank_).from);
      }
    }
    lend([&](int reader) { lend_block(reader, reader); });
  }

  /// A sum in rank order along the nodes, which hold consecutive ranks. For every target one rank
  /// of each node adds what its node gives to the partial sum from the node before, and sends that
  /// to its like in the next node; the one in the last node rounds, and sends the result to the
  /// target.
  ///
  /// Every rank takes its targets in ascending order, piece by piece. So the first piece that is
  /// not done anywhere waits for nothing, and all nodes are at work at once.
  void chained_sum() {
    std::size_t const last = topology_->nodes() - 1;
    auto const stand_in = [&](std::size_t at, int target) {
      return topology_->delegate(at, target);
    };
    for (int target = 0; target < size(); ++target) {
      if (stand_in(node(), target) != rank_ || !moves(block(target).count)) continue;
      int const to = node() == last ? target : stand_in(node() + 1, target);
      task(Work::partial, 0, to, block(target));
      tasks_.back().rounded = node() == last;
      tasks_.back().begins = node() == 0;
      if (node() > 0) input(stand_in(node() - 1, target), From::link, 0);
      for (int const source : local_ranks()) input(source, From::send_buffer, block(target).from);
    }
    if (node() != last && moves(block(rank_).count)) {
      task(Work::copy, 0, rank_, block(rank_));
      input(stand_in(last, rank_), From::link, 0);
    }
    lend([&](int reader) {
      for (int target = 0; target < size(); ++target) {
        if (stand_in(node(), target) == reader) lend_block(reader, target);
      }
    });
  }

  /// Every rank gets blocks of others as they are; of those of another node perhaps only its own.
  void copies(int pass) {
    auto const reaches = [&](int source, int target) {
      return topology_->share_node(source, target) || !route_.relayed ||
             topology_->delegate(topology_->node(target), source) == target;
    };
    for (int turn = 0; turn < size(); ++turn) {
      int const source = (rank_ + turn) % size();
      PassBlock const part = block_between(op_, pass, source, rank_, size());
      if (!gives(source, part) || !reaches(source, rank_)) continue;
      task(Work::copy, pass, rank_, part);
      input(source, is_remote(source) ? From::link : place(part), part.from);
    }
    for (int turn = 1; turn < size(); ++turn) {
      int const target = (rank_ + size() - turn) % size();
      PassBlock const part = block_between(op_, pass, rank_, target, size());
      if (!gives(rank_, part) || !reaches(rank_, target)) continue;
      task(Work::copy, pass, target, part);
      input(rank_, place(part), part.from);
    }
  }
  /// What one rank of a node was sent is read by the others.
  void relays(int pass) {
    auto const relayed = [&](int source, int target) {
      PassBlock part = block_between(op_, pass - 1, source, target, size());
      part.from = part.to;
      return part;
    };
    for (int source = 0; source < size(); ++source) {
      if (!is_remote(source)) continue;
      int const relay = topology_->delegate(node(), source);
      PassBlock const part = relayed(source, rank_);
      if (relay == rank_ || !gives(source, part)) continue;
      task(Work::copy, pass, rank_, part);
      input(relay, From::result, part.from);
    }
    lend([&](int reader) {
      for (int source = 0; source < size(); ++source) {
        if (!is_remote(source) || topology_->delegate(node(), source) != rank_) continue;
        PassBlock const part = relayed(source, reader);
        if (!gives(source, part)) continue;
        task(Work::copy, pass, reader, part);
        input(rank_, From::result, part.from);
      }
    });
  }

  [[nodiscard]] static From place(PassBlock const& part) noexcept {
    return part.result ? From::result : From::send_buffer;
  }
  /// Calls `what(reader)` for every neighbour: in the order in which it will read.
  template <class What>
  void lend(What const& what) {
    for (int const reader : local_ranks()) {
      if (reader != rank_) what(reader);
    }
  }
  void lend_block(int reader, int target) {
    if (!moves(block(target).count)) return;
    task(Work::copy, 0, reader, block(target));
    input(rank_, From::send_buffer, block(target).from);
  }

  /// Adds a task, whose inputs follow.
  void task(Work work, int pass, int to, PassBlock const& part) {
    bool const chained = route_.chained && pass == 0;
    tasks_.push_back({.work = work,
                      .pass = static_cast<std::uint8_t>(pass),
                      .to = to,
                      .first_input = static_cast<std::uint32_t>(inputs_.size()),
                      .at = part.to,
                      .count = part.count,
                      .piece = chained ? chained_piece(part.count) : chunk_ / size_of(op_.dtype)});
    if (to == rank_) ++results_[pass];
  }
  void input(int rank, From from, std::size_t at) {
    Task& task = tasks_.back();
    PeerTraffic& source = traffic_[index(rank)];
    inputs_.push_back({.rank = rank, .from = from, .turn = source.in.add(from), .at = at});
    if (from == From::link) source.chunks_in += chunks(task);
    if (task.inputs++ > 0 || task.to == rank_) return;
    PeerTraffic& target = traffic_[index(task.to)];
    if (is_remote(task.to)) {
      target.chunks_out += chunks(task);
    } else {
      task.way = from;
    }
    task.turn = target.out.add(task.way);
  }
  /// Elements of a piece that goes along the nodes: all nodes but the first idle for a 16th of the
  /// time until the first piece is there.
  [[nodiscard]] std::size_t chained_piece(std::size_t count) const noexcept {
    std::size_t const wide = size_of(op_.accumulate);
    auto const piece = static_cast<std::size_t>(zero::detail::chain_piece(count * wide));
    return (std::min)(piece, chunk_) / (std::max)(wide, size_of(op_.dtype));
  }
  [[nodiscard]] static std::uint32_t chunks(Task const& task) noexcept {
    if (task.count == 0) return 1;
    return static_cast<std::uint32_t>((task.count + task.piece - 1) / task.piece);
  }

  Collective op_{};
  Route route_{};
  Topology const* topology_ = nullptr;
  int rank_ = 0;
  std::size_t chunk_ = 0;
  std::vector<Task> tasks_;
  std::vector<Input> inputs_;
  std::vector<PeerTraffic> traffic_;  ///< by peer
  std::uint32_t results_[most_passes] = {};
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
