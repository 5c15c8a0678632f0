/// @file
/// What pairs of ranks give each other in a collective, and which way it goes over the nodes of a
/// group. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/topology.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/comm/shared/shares.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What one rank gives another in one pass of a collective, in elements.
struct PassBlock {
  std::size_t from = 0;   ///< start in the source's buffer
  std::size_t to = 0;     ///< start in the target's receive buffer
  std::size_t count = 0;  ///< 0: nothing goes from this source to this target
  bool result = false;    ///< the source's buffer is its receive buffer: what an earlier pass left
};

/// True if every rank sums all of a small result by itself.
[[nodiscard]] constexpr bool is_small_sum(Collective const& op) noexcept {
  return op.op == Op::all_reduce && op.block_bytes() <= inline_bytes;
}

/// An all-reduce is a reduce-scatter of N shares and an all-gather of the results.
[[nodiscard]] constexpr int passes(Collective const& op) noexcept {
  return op.op == Op::all_reduce && !is_small_sum(op) ? 2 : 1;
}

/// What `source` gives `target`.
[[nodiscard]] constexpr PassBlock block_between(
    Collective const& op, int pass, int source, int target, int size) noexcept {
  auto const s = static_cast<std::size_t>(source);
  auto const t = static_cast<std::size_t>(target);
  switch (op.op) {
    case Op::reduce_scatter: return {t * op.count, 0, op.count, false};
    case Op::all_gather: return {0, s * op.count, op.count, false};
    case Op::all_to_all: return {t * op.count, s * op.count, op.count, false};
    case Op::broadcast: return {0, 0, source == op.root ? op.count : 0, false};
    case Op::all_reduce: break;
  }
  if (passes(op) == 1) return {0, 0, op.count, false};
  int const share = pass == 0 ? target : source;
  std::size_t const begin = zero::detail::share_begin(op.count, share, size);
  std::size_t const count = zero::detail::share_begin(op.count, share + 1, size) - begin;
  // A rank's own share is where it belongs already.
  return {begin, begin, pass == 1 && source == target ? 0 : count, pass == 1};
}

/// Every rank finds the same: it depends on the call, the nodes and the family's options alone.
struct Route {
  /// A sum in rank order: the nodes add one after another.
  bool chained = false;
  /// Copies: on every node one rank is sent a block, and in a pass of its own the others read it
  /// there.
  bool relayed = false;
  std::string_view flat_because{};  ///< a sum that could be chained, or nearly: why it is not
};

/// How a group's collectives go.
class Routing {
 public:
  /// @param topology  lives longer
  explicit Routing(Topology const* topology, Sums sums = Sums::automatic)
      : topology_(topology), sums_(sums) {
    std::uint64_t const ranks = index(topology->size());
    for (std::size_t node = 0; node < topology->nodes(); ++node) {
      std::uint64_t const here = topology->ranks(node).size();
      largest_ = (std::max)(largest_, here);
      if (here * (ranks - here) > busiest_ * (ranks - busiest_)) busiest_ = here;
    }
    if (topology->nodes() == 1) {
      never_chained_ = "the group is on one node";
    } else if (sums == Sums::flat) {
      never_chained_ = "Options::sums is flat";
    } else if (!topology->is_consecutive()) {
      never_chained_ = "ranks of a node are not consecutive in the group";
    }
  }

  [[nodiscard]] Topology const& topology() const noexcept { return *topology_; }
  /// What keeps the group's sums from being chained, whatever their size; empty if nothing does.
  [[nodiscard]] std::string_view never_chained() const noexcept { return never_chained_; }
  /// The way of a collective.
  [[nodiscard]] Route of(Collective const& op) const {
    bool const neighbours = topology_->nodes() > 1 && topology_->has_neighbours();
    Route route;
    if (zero::detail::is_reduction(op.op) && !is_small_sum(op)) {
      route.flat_because = why_flat(op);
      route.chained = route.flat_because.empty();
    }
    bool const copies = op.op == Op::all_gather || op.op == Op::broadcast || passes(op) == 2;
    route.relayed = neighbours && copies;
    return route;
  }

 private:
  [[nodiscard]] std::string_view why_flat(Collective const& op) const {
    if (!never_chained_.empty()) return never_chained_;
    zero::detail::NodeBlocks blocks{.ranks = index(topology_->size()),
                                    .here = busiest_,
                                    .nodes = topology_->nodes(),
                                    .count = block_between(op, 0, 0, 0, topology_->size()).count,
                                    .element = size_of(op.dtype),
                                    .accumulate = size_of(op.accumulate)};
    if (blocks.block() <= zero::detail::unchained_bytes) {
      return "the blocks of the last sum were at most 2 KiB";
    }
    if (sums_ == Sums::chained) return {};
    std::uint64_t const flat = blocks.flat();
    blocks.here = largest_;
    // Where every rank is a node nobody saves anything.
    bool const pays = topology_->has_neighbours() && blocks.chain_pays(flat);
    return pays ? std::string_view() : "a chain would not have paid for the last sum";
  }

  Topology const* topology_;
  Sums sums_;
  std::uint64_t largest_ = 0;  ///< ranks of the node that has most
  std::uint64_t busiest_ = 0;  ///< of the one that sends most for a flat sum
  std::string_view never_chained_{};
};

/// Rounds of a collective; a rank begins one when it has all of the one before.
[[nodiscard]] constexpr int passes(Collective const& op, Route route) noexcept {
  return passes(op) + (route.relayed ? 1 : 0);
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
