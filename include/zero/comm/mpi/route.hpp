/// @file
/// Which way a collective goes between nodes. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/mpi/topology.hpp"
#include "zero/comm/mpi/transfer.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Every rank finds the same from the calls of all.
struct Route {
  bool by_library = false;  ///< MPI reduces
  /// A sum: on every node one rank adds what all of its node give, and sends that. A target is sent
  /// as many blocks as there are other nodes, not ranks.
  bool by_node = false;
  /// A sum in rank order: the nodes add one after another, see Chain.
  bool chained = false;
  /// Copies: on every node one rank is sent a block, and in a pass of its own the others read it
  /// there.
  bool relayed = false;
};

/// Rounds of a collective; a rank begins one when it has all of the one before.
[[nodiscard]] constexpr int passes(Collective const& op, Route route) noexcept {
  return passes(op) + (route.relayed ? 1 : 0);
}

/// True if blocks that are copied go to all ranks, so that one copy per node suffices.
[[nodiscard]] constexpr bool is_relayable(Collective const& op) noexcept {
  return op.op == Op::all_gather || op.op == Op::broadcast ||
         (op.op == Op::all_reduce && !is_small_sum(op));
}

/// True if the sum of a collective ends earlier along the nodes than flat.
[[nodiscard]] inline bool chain_pays(Topology const& topology, Collective const& op) {
  zero::detail::NodeBlocks blocks{.ranks = static_cast<std::uint64_t>(topology.size()),
                                  .nodes = topology.nodes(),
                                  .count = transfer(op, 0, 0, 0, topology.size()).count,
                                  .element = size_of(op.dtype),
                                  .accumulate = size_of(op.accumulate)};
  std::uint64_t flat = 0;
  std::uint64_t most = 1;
  for (std::size_t node = 0; node < topology.nodes(); ++node) {
    blocks.here = topology.ranks(node).size();
    flat = (std::max)(flat, blocks.flat());
    most = (std::max)(most, blocks.here);
  }
  blocks.here = most;
  return blocks.chain_pays(flat);
}

/// What one rank gets of another's, and whose memory it is in.
struct Hop {
  Transfer part{};
  int holder = 0;
};

/// What `target` gets of what `source` gives in one pass.
[[nodiscard]] inline Hop hop(
    Collective const& op, Route route, Topology const& topology, int pass, int source, int target) {
  bool const near = topology.share_node(source, target);
  if (pass == passes(op)) {
    int const relay = topology.delegate(topology.node(target), source);
    if (near || relay == target) return {{}, source};
    Transfer part = transfer(op, pass - 1, source, target, topology.size());
    part.from = part.to;
    part.result = true;
    return {part, relay};
  }
  Hop result{transfer(op, pass, source, target, topology.size()), source};
  if (near) return result;
  bool const elsewhere =
      is_sum(op, pass)
          ? route.chained ||
                (route.by_node && topology.delegate(topology.node(source), target) != source)
          : route.relayed && topology.delegate(topology.node(target), source) != target;
  if (elsewhere) result.part.count = 0;
  return result;
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
