/// Bytes between nodes of consecutive ranks: what the formulas say that planner and simulator have.
#include "zero/comm/shared/node_bytes.hpp"

#include "mpi/pooled.hpp"
#include "mpi/world.hpp"

#include <doctest/doctest.h>
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace node_bytes_test {
namespace {

using zero::Op;
using zero::detail::NodeBlocks;
using zero::mpi::Sums;

constexpr std::size_t count = 30'001;

/// The job's nodes, each with so many ranks but for the last one, and their blocks of bf16.
std::vector<NodeBlocks> nodes_of(int per_node) {
  int const size = mpi_tests::world_size();
  int const nodes = (size + per_node - 1) / per_node;
  std::vector<NodeBlocks> all;
  for (int node = 0; node < nodes; ++node) {
    int const here = std::min(per_node, size - node * per_node);
    all.push_back({.ranks = static_cast<std::uint64_t>(size),
                   .here = static_cast<std::uint64_t>(here),
                   .nodes = static_cast<std::uint64_t>(nodes),
                   .count = count,
                   .element = 2,
                   .accumulate = 4});
  }
  return all;
}

/// Bytes of a collective over memory of the windows that all ranks together got in chunks.
template <class Reduction = zero::mpi::Ordered>
std::uint64_t exchanged(Sums sums, Op op, int per_node) {
  zero::mpi::Options const options{.deadline_s = 60,
                                   .node = mpi_tests::world_rank() / per_node,
                                   .shared_bytes = 16 * zero::MiB,
                                   .sums = sums};
  zero::Mpi<Reduction> comm(MPI_COMM_WORLD, options);
  {
    std::size_t const all = count * static_cast<std::size_t>(comm.size());
    mpi_tests::Pooled<zero::bf16> const send(comm, all), recv(comm, all);
    send.set(zero::bf16(0.f));
    zero::run(comm, mpi_tests::collective(op, count, send.data(), recv.data()));
  }
  CHECK(comm.transport().native_bytes == 0);
  std::uint64_t const own = comm.transport().exchanged_bytes;
  comm.close();
  std::uint64_t sum = 0;
  MPI_Allreduce(&own, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

/// What `bytes(node, last)` says of all nodes.
template <class Bytes>
std::uint64_t total(int per_node, Bytes const& bytes) {
  auto const nodes = nodes_of(per_node);
  std::uint64_t sum = 0;
  for (NodeBlocks const& node : nodes) sum += bytes(node, &node == &nodes.back());
  return sum;
}

std::uint64_t total_flat(int per_node) {
  return total(per_node, [](NodeBlocks const& node, bool) { return node.flat(); });
}

TEST_CASE("a flat sum, a node's own sum and a gather send what the formulas say") {
  for (int const per_node : {1, 2, 3}) {
    CAPTURE(per_node);
    CHECK(exchanged(Sums::flat, Op::reduce_scatter, per_node) == total_flat(per_node));
    CHECK(exchanged(Sums::flat, Op::all_gather, per_node) ==
          total(per_node, [](NodeBlocks const& node, bool) { return node.relayed(); }));
    // Ranks that are alone on their nodes leave sums to MPI.
    if (per_node == 1 || mpi_tests::world_size() <= per_node) continue;
    CHECK(exchanged<zero::mpi::Native>(Sums::flat, Op::reduce_scatter, per_node) ==
          total(per_node, [](NodeBlocks const& node, bool) { return node.by_node(); }));
  }
}

TEST_CASE("a chain sends partial sums in fp32 and results in bf16, where that is less") {
  for (int const per_node : {1, 2, 3}) {
    CAPTURE(per_node);
    auto const chained =
        total(per_node, [](NodeBlocks const& node, bool last) { return node.chained(last); });
    CHECK(exchanged(Sums::chained, Op::reduce_scatter, per_node) == chained);
    auto const nodes = nodes_of(per_node);
    std::uint64_t most = 0;
    for (NodeBlocks const& node : nodes) most = std::max(most, node.flat());
    CHECK(exchanged(Sums::automatic, Op::reduce_scatter, per_node) ==
          (nodes.front().chain_pays(most) ? chained : total_flat(per_node)));
  }
}

}  // namespace
}  // namespace node_bytes_test
