/// @file
/// What collectives of `zero::Mpi` cost: sums in rank order, and gathers that reach a node once.
#pragma once

#include "cluster.hpp"
#include "collectives.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstdint>

namespace plan {

using namespace zero;

/// The blocks of a group with `count` elements for each rank, as its fullest node sees them.
[[nodiscard]] inline zero::detail::NodeBlocks node_blocks(Placement const& placement,
                                                          std::uint64_t count,
                                                          std::uint64_t element,
                                                          std::uint64_t accumulate) {
  int const here = (std::min)(placement.size, placement.per_node);
  return {.ranks = static_cast<std::uint64_t>(placement.size),
          .here = static_cast<std::uint64_t>(here),
          .nodes = static_cast<std::uint64_t>(placement.nodes()),
          .count = count,
          .element = element,
          .accumulate = accumulate};
}

/// What a collective of `zero::Mpi` costs. Ranks are taken to start together, and each node to have
/// consecutive ranks.
///
/// Data moves at once. A node sends as many bytes as `NodeBlocks` says, through adapters that send
/// and receive at once; what its ranks read of each other goes on beside that. A chain of m nodes
/// has m-1 latencies more, and as many pieces of each rank until the first result is there, and
/// sends that with another. Other collectives go on meanwhile. An all-reduce is a sum of shares and
/// a gather. Neither adding nor what a message costs a processor is counted.
/// @param cluster     whose links
/// @param placement   of the group
/// @param op          of which
/// @param count       elements, as `Collective::count`
/// @param element     bytes, as they travel
/// @param accumulate  bytes, as partial sums travel
/// @param sums        which way; `automatic` as `zero::Mpi` chooses
[[nodiscard]] CollectiveCost cost_over_mpi(Cluster const& cluster,
                                           Placement const& placement,
                                           Op op,
                                           std::uint64_t count,
                                           std::uint64_t element,
                                           std::uint64_t accumulate,
                                           Sums sums);

inline CollectiveCost cost_over_mpi(Cluster const& cluster,
                                    Placement const& placement,
                                    Op op,
                                    std::uint64_t count,
                                    std::uint64_t element,
                                    std::uint64_t accumulate,
                                    Sums sums) {
  auto const blocks = node_blocks(placement, count, element, accumulate);
  auto const n = static_cast<double>(blocks.ranks);
  auto const g = static_cast<double>(blocks.here);
  auto const m = static_cast<double>(blocks.nodes);
  CollectiveCost total{.algorithm = Algorithm::flat};
  if (placement.size == 1) return total;
  auto const block = static_cast<double>(blocks.block());
  double const a = cluster.inside.latency;
  double const A = cluster.between.latency;
  double const rate = cluster.between.rate_of(block) * cluster.adapters_of(placement.sharing);
  // Bytes that a node sends, and that each of its ranks reads there.
  auto const moves = [&](double sent, double read) {
    total.transfer = (std::max)(m > 1. ? sent / rate : 0., read / cluster.inside.rate_of(block));
  };
  total.latency = m > 1. ? A : a;
  total.free = total.latency;
  bool const small = op == Op::all_reduce && blocks.block() <= zero::detail::unchained_bytes;
  if (op == Op::all_reduce && !small) {
    std::uint64_t const share = (count + blocks.ranks - 1) / blocks.ranks;
    auto const of = [&](Op half) {
      return cost_over_mpi(cluster, placement, half, share, element, accumulate, sums);
    };
    CollectiveCost const sum = of(Op::reduce_scatter);
    CollectiveCost const gather = of(Op::all_gather);
    return {sum.algorithm,
            sum.latency + gather.latency,
            sum.transfer + gather.transfer,
            sum.free + gather.free};
  }
  if (op == Op::all_to_all || small) {
    moves(static_cast<double>(blocks.flat()), (g - 1.) * block);
    return total;
  }
  if (op == Op::all_gather || op == Op::broadcast) {
    total.algorithm = Algorithm::relayed;
    double const sent = op == Op::broadcast ? (m - 1.) * block : double(blocks.relayed());
    // Who reads what another of its node was sent waits for that.
    if (m > 1. && g > 1.) total.latency += a;
    total.free = total.latency;
    moves(sent, op == Op::broadcast ? block : (n - 1.) * block);
    return total;
  }
  if (sums == Sums::automatic) {
    sums = blocks.chain_pays(blocks.flat()) ? Sums::chained : Sums::flat;
  }
  if (sums == Sums::flat || m == 1.) {
    moves(static_cast<double>(blocks.flat()), (g - 1.) * block);
    return total;
  }
  total.algorithm = Algorithm::chained;
  // A rank adds all of its node's blocks for its share of the targets.
  moves(static_cast<double>(blocks.chained()), (g - 1.) / g * n * block);
  total.latency += (m - 1.) * A;
  // Each rank of a node has a piece of a block at the front.
  std::uint64_t const whole = count * accumulate;
  auto const first = static_cast<double>((std::min)(zero::detail::chain_piece(whole), whole));
  double const fill = (m - 1.) * g * first / rate;
  total.transfer += fill;
  total.free = total.latency + fill;
  return total;
}

}  // namespace plan
