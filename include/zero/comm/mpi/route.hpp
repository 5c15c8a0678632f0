/// @file
/// Which way a collective goes over the nodes of a group. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/mpi/block.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/topology.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Every rank finds the same: it depends on the call, the nodes and the family's options alone.
struct Route {
  bool by_library = false;  ///< MPI reduces
  /// A sum: on every node one rank adds what all of its node give, and sends that. A target is sent
  /// as many blocks as there are other nodes, not ranks.
  bool by_node = false;
  /// A sum in rank order: the nodes add one after another.
  bool chained = false;
  /// Copies: on every node one rank is sent a block, and in a pass of its own the others read it
  /// there.
  bool relayed = false;
};

/// How a group's collectives go.
struct Routing {
  Topology const* topology = nullptr;
  bool native = false;  ///< MPI reduces where every rank is a node
  Sums sums = Sums::automatic;

  /// The way of a collective.
  [[nodiscard]] Route of(Collective const& op) const {
    bool const spread = topology->nodes() > 1;
    bool const sum = zero::detail::is_reduction(op.op);
    Route route;
    if (native && sum) {
      route.by_node = spread && topology->has_neighbours() && !is_small_sum(op);
      route.by_library = spread && !route.by_node;
    } else if (sum && !is_small_sum(op)) {
      route.chained = why_flat(op).empty();
    }
    bool const copies = op.op == Op::all_gather || op.op == Op::broadcast || passes(op) == 2;
    route.relayed = spread && topology->has_neighbours() && !route.by_library && copies;
    return route;
  }

  /// What keeps the group's sums from being chained, whatever their size; empty if nothing does.
  [[nodiscard]] std::string_view never_chained() const noexcept {
    if (topology->nodes() == 1) return "the group is on one node";
    if (native) return "mpi::Native adds in an order of its own";
    if (sums == Sums::flat) return "Options::sums is flat";
    if (!topology->is_consecutive()) return "ranks of a node are not consecutive in the group";
    return {};
  }
  /// The same of one sum.
  [[nodiscard]] std::string_view why_flat(Collective const& op) const {
    if (std::string_view const always = never_chained(); !always.empty()) return always;
    Block const block = block_between(op, 0, 0, 0, topology->size());
    if (block.count * size_of(op.dtype) <= zero::detail::unchained_bytes) {
      return "the blocks of the last sum were at most 2 KiB";
    }
    bool const pays = sums != Sums::automatic || chain_pays(op, block.count);
    return pays ? std::string_view() : "a chain would not have paid for the last sum";
  }

 private:
  /// True if a sum ends earlier along the nodes than flat.
  [[nodiscard]] bool chain_pays(Collective const& op, std::size_t count) const {
    zero::detail::NodeBlocks blocks{.ranks = static_cast<std::uint64_t>(topology->size()),
                                    .nodes = topology->nodes(),
                                    .count = count,
                                    .element = size_of(op.dtype),
                                    .accumulate = size_of(op.accumulate)};
    std::uint64_t flat = 0;
    std::uint64_t most = 1;
    for (std::size_t node = 0; node < topology->nodes(); ++node) {
      blocks.here = topology->ranks(node).size();
      flat = (std::max)(flat, blocks.flat());
      most = (std::max)(most, blocks.here);
    }
    blocks.here = most;
    return blocks.chain_pays(flat);
  }
};

/// Rounds of a collective; a rank begins one when it has all of the one before.
[[nodiscard]] constexpr int passes(Collective const& op, Route route) noexcept {
  return passes(op) + (route.relayed ? 1 : 0);
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
