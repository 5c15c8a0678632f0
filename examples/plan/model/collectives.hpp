/// @file
/// What collectives cost on a cluster: rings, trees, and rings within rings.
#pragma once

#include "../simulate/communicator.hpp"
#include "cluster.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace plan {

using namespace zero;
using simulate::Placement;

/// Which way `zero::Mpi` adds over nodes.
enum class Sums : std::uint8_t {
  automatic,  ///< flat or chained, as `zero::Mpi` chooses
  flat,       ///< in rank order; each rank sends every rank elsewhere its block
  chained,    ///< in rank order; partial sums go from node to node
};

/// How ranks exchange blocks.
enum class Algorithm : std::uint8_t {
  /// From neighbour to neighbour: fewest bytes, size - 1 latencies.
  ring,
  /// In log2(size) rounds with partners further and further away; links between nodes carry blocks
  /// of all their ranks.
  tree,
  /// Rings inside the nodes, and between ranks of the same place on different nodes.
  hierarchical,
  flat,     ///< of `zero::Mpi`, as the others below: see `Sums`
  chained,  ///< likewise
  relayed,  ///< blocks reach every node once, where the others read them
};

/// Number of algorithms that NCCL and its like choose from: their values are [0, algorithm_count).
inline constexpr int algorithm_count = 3;

/// What reports call it.
[[nodiscard]] constexpr std::string_view name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::ring: return "ring";
    case Algorithm::tree: return "tree";
    case Algorithm::hierarchical: return "hierarchical";
    case Algorithm::flat: return "flat";
    case Algorithm::chained: return "chained";
    case Algorithm::relayed: return "relayed";
  }
  return "unknown";
}

/// `simulate::CollectiveCost`, and how it is reached.
struct CollectiveCost {
  Algorithm algorithm = Algorithm::ring;  ///< by which
  double latency = 0.;                    ///< seconds that do not depend on bytes
  double transfer = 0.;                   ///< seconds that do
  double free = 0.;                       ///< of both, in which links are free for others

  /// Both.
  [[nodiscard]] double seconds() const noexcept { return latency + transfer; }
  /// For a timeline.
  [[nodiscard]] operator simulate::CollectiveCost() const noexcept {
    return {latency, transfer, free};
  }
};

/// What a collective costs by a ring, a tree or rings within rings. Ranks are taken to start
/// together.
///
/// With S bytes of all blocks, n ranks, g of them on each of m nodes, links inside (a, B) and, for
/// each of the groups that share it, between nodes (A, C): a ring takes (n-1)·A + (n-1)/n·S/min(B,
/// C), a hierarchical one (g-1)·a + (g-1)/g·S/B + (m-1)·A + (m-1)/m·S/C; a tree log2(g)·a +
/// log2(m)·A and the longer one of both transfers, which are pipelined. An all-reduce is two of
/// them, a broadcast one. An all-to-all sends to each rank directly by any of them.
/// @par Source  Thakur, Rabenseifner and Gropp 2005; NCCL's rings and trees
[[nodiscard]] CollectiveCost cost(Cluster const& cluster,
                                  Placement const& placement,
                                  Op op,
                                  double block_bytes,
                                  Algorithm algorithm);
/// What it was measured to take by the larger buffer's bytes, on the ranks of one node.
/// @throws Error (invalid_argument) for another number of ranks than was measured
[[nodiscard]] inline CollectiveCost measured_cost(Cluster const& cluster,
                                                  Placement const& placement,
                                                  Op op,
                                                  double block_bytes) {
  if (placement.size != cluster.devices_per_node) {
    fail(ErrorKind::invalid_argument,
         {"collectives of '",
          cluster.name,
          "' were measured on ",
          cluster.devices_per_node,
          cluster.devices_per_node == 1 ? " rank, not on " : " ranks, not on ",
          placement.size});
  }
  Timing const& known = *cluster.device.timing(zero::name(op));
  bool const many = op == Op::reduce_scatter || op == Op::all_gather || op == Op::all_to_all;
  double const all = many ? placement.size * block_bytes : block_bytes;
  double const least = known.at({known.sizes.front().front()});
  double const total = all > 0. ? known.at({all}) : 0.;
  double const latency = (std::min)(least, total);
  return {.latency = latency, .transfer = total - latency};
}
/// What was measured, or by the fastest one, as communication libraries choose.
[[nodiscard]] CollectiveCost cost(Cluster const& cluster,
                                  Placement const& placement,
                                  Op op,
                                  double block_bytes);

inline CollectiveCost cost(Cluster const& cluster,
                           Placement const& placement,
                           Op op,
                           double block_bytes,
                           Algorithm algorithm) {
  double const n = placement.size;
  double const g = (std::min)(placement.size, placement.per_node);
  double const m = placement.nodes();
  CollectiveCost total{.algorithm = algorithm};
  if (placement.size == 1) return total;
  bool const many = op == Op::reduce_scatter || op == Op::all_gather || op == Op::all_to_all;
  double const all = many ? n * block_bytes : block_bytes;
  auto const inside = [&](double payload) { return cluster.inside.rate_of(payload); };
  double const adapters = cluster.adapters_of(placement.sharing);
  auto const between = [&](double payload) { return cluster.between.rate_of(payload) * adapters; };
  double const a = cluster.inside.latency;
  double const A = cluster.between.latency;
  if (op == Op::all_to_all) {
    // One message to each rank; those of a node leave through its adapters.
    double const far = all * (n - g) / n;
    total.latency = (g - 1.) * a + (m > 1. ? std::ceil(std::log2(m)) * A : 0.);
    total.transfer = (g > 1. ? all * (g - 1.) / n / inside(block_bytes) : 0.) +
                     (m > 1. ? far * g / between(block_bytes) : 0.);
    return total;
  }
  // Of a reduce-scatter or an all-gather.
  if (algorithm == Algorithm::ring) {
    total.latency = (n - 1.) * (m > 1. ? A : a);
    double rate = g > 1. ? inside(all) : between(all);
    if (m > 1.) rate = (std::min)(rate, between(all));
    total.transfer = (n - 1.) / n * all / rate;
  } else {
    bool const tree = algorithm == Algorithm::tree;
    double near = 0.;
    double far = 0.;
    if (g > 1.) {
      total.latency += (tree ? std::ceil(std::log2(g)) : g - 1.) * a;
      near = (g - 1.) / g * all / inside(all);
    }
    if (m > 1.) {
      total.latency += (tree ? std::ceil(std::log2(m)) : m - 1.) * A;
      far = (m - 1.) / m * all / between(all / g);
    }
    // Rounds of a tree are pipelined; rings within rings take their turns.
    total.transfer = tree ? (std::max)(near, far) : near + far;
  }
  if (op == Op::all_reduce) {
    total.latency *= 2.;
    total.transfer *= 2.;
  }
  return total;
}

inline CollectiveCost cost(Cluster const& cluster,
                           Placement const& placement,
                           Op op,
                           double block_bytes) {
  if (cluster.device.timing(zero::name(op)) != nullptr) {
    return measured_cost(cluster, placement, op, block_bytes);
  }
  CollectiveCost best = cost(cluster, placement, op, block_bytes, Algorithm::ring);
  for (int i = 1; i < algorithm_count; ++i) {
    CollectiveCost const other =
        cost(cluster, placement, op, block_bytes, static_cast<Algorithm>(i));
    if (other.seconds() < best.seconds()) best = other;
  }
  return best;
}

}  // namespace plan
