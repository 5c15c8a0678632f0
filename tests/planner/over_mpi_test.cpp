// Collectives of zero::Mpi over nodes that do not exist, held against hand calculations.
#include "plan/model/step.hpp"
#include "plan/model/transformer.hpp"
#include "plan/model/world.hpp"
#include "planner/clusters.hpp"
#include "zero/simulate.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstdint>

namespace over_mpi_test {
namespace {

using tests::Approx, tests::plain;

namespace simulate = zero::simulate;
using plan::Algorithm;
using plan::Sums;
using zero::Op;
using zero::detail::NodeBlocks;

constexpr simulate::Placement nodes{.size = 16, .per_node = 4};
constexpr std::uint64_t count = 500'000;  // 1 MB, 2 MB of partial sums

plan::CollectiveCost cost(simulate::Placement const& at, Op op, std::uint64_t elements, Sums sums) {
  return plan::cost_over_mpi(plain(), at, op, elements, 2, 4, sums);
}

TEST_CASE("bytes of a node: every pair, one partial sum, one sum of the node, one copy a node") {
  NodeBlocks const node{
      .ranks = 11, .here = 4, .nodes = 3, .count = 5000, .element = 2, .accumulate = 4};
  CHECK(node.flat() == 4 * 7 * 10'000);
  CHECK(node.chained() == 11 * 20'000);
  CHECK(node.chained(true) == 7 * 10'000);
  CHECK(node.by_node() == 7 * 10'000);
  CHECK(node.relayed() == 4 * 2 * 10'000);
  // Two hops, with a piece of each of four ranks: a whole partial sum of 20,000 bytes.
  std::uint64_t const hops = 2 * (256 * 1024 + 4 * 20'000);
  CHECK_FALSE(node.chain_pays(node.chained() + hops));
  CHECK(node.chain_pays(node.chained() + hops + 1));
  NodeBlocks small = node;
  small.count = 1024;
  CHECK_FALSE(small.chain_pays(1 << 30));
  small.count = 1025;
  CHECK(small.chain_pays(1 << 30));
  NodeBlocks const alone{.ranks = 4, .here = 4, .count = 5000};
  CHECK(alone.flat() == 0);
  CHECK(alone.chained() == 0);
  CHECK(alone.relayed() == 0);
  CHECK_FALSE(alone.chain_pays(1));
  CHECK(zero::detail::chain_piece(100) == 32 * 1024);
  CHECK(zero::detail::chain_piece(1 << 20) == 64 * 1024);
  CHECK(zero::detail::chain_piece(1 << 30) == 256 * 1024);
  // With one rank a node sends N-1 blocks as it is.
  NodeBlocks const single{.ranks = 8, .here = 1, .nodes = 8, .count = 5000};
  CHECK_FALSE(single.chain_pays(single.flat()));
}

TEST_CASE("sums over nodes: announced, then as long as the adapters have bytes") {
  double const announced = 2e-6 + 2 * 10e-6;
  auto const flat = cost(nodes, Op::reduce_scatter, count, Sums::flat);
  CHECK(flat.algorithm == Algorithm::flat);
  CHECK(flat.latency == Approx(announced + 10e-6));
  CHECK(flat.transfer == Approx(4. * 12. * 1e6 / 20e9));
  auto const native = cost(nodes, Op::reduce_scatter, count, Sums::native);
  CHECK(native.algorithm == Algorithm::native);
  CHECK(native.latency == Approx(flat.latency));
  CHECK(native.transfer == Approx(12. * 1e6 / 20e9));
  auto const chained = cost(nodes, Op::reduce_scatter, count, Sums::chained);
  CHECK(chained.algorithm == Algorithm::chained);
  CHECK(chained.latency == Approx(announced + 10e-6 + 3. * 10e-6));
  CHECK(chained.transfer == Approx((16. * 2e6 + 3. * 4. * 2e6 / 16.) / 20e9));
  // Links have nothing to do but to send a node's bytes.
  CHECK(chained.seconds() - chained.free == Approx(16. * 2e6 / 20e9));
  CHECK(flat.seconds() - flat.free == Approx(flat.transfer));
  // A block is a piece if it is smaller.
  CHECK(cost(nodes, Op::reduce_scatter, 100, Sums::chained).transfer ==
        Approx((16. * 400. + 3. * 4. * 400.) / 20e9));
  CHECK(cost(nodes, Op::reduce_scatter, count, Sums::automatic).algorithm == Algorithm::chained);
  simulate::Placement const singles{.size = 16, .per_node = 1};
  CHECK(cost(singles, Op::reduce_scatter, count, Sums::automatic).algorithm == Algorithm::flat);
  simulate::Placement const shared{.size = 16, .per_node = 1, .sharing = 4};
  CHECK(cost(shared, Op::reduce_scatter, count, Sums::flat).transfer == Approx(15. * 1e6 / 5e9));
}

TEST_CASE("where adapters are fast, what ranks of a node read of each other counts") {
  plan::Cluster cluster = plain();
  cluster.between.rate = 1e15;
  auto const transfer = [&](Op op, Sums sums) {
    return plan::cost_over_mpi(cluster, nodes, op, count, 2, 4, sums).transfer;
  };
  CHECK(transfer(Op::reduce_scatter, Sums::flat) == Approx(3e6 / 100e9).epsilon(1e-2));
  CHECK(transfer(Op::reduce_scatter, Sums::native) == Approx(12e6 / 100e9).epsilon(1e-2));
  CHECK(transfer(Op::all_gather, Sums::flat) == Approx(15e6 / 100e9).epsilon(1e-2));
}

TEST_CASE("gathers reach a node once; an all-reduce is a sum of shares and a gather") {
  auto const gather = cost(nodes, Op::all_gather, count, Sums::flat);
  CHECK(gather.algorithm == Algorithm::relayed);
  CHECK(gather.latency == Approx(22e-6 + 10e-6 + 1e-6));
  CHECK(gather.transfer == Approx(4. * 3. * 1e6 / 20e9));
  CHECK(cost(nodes, Op::broadcast, count, Sums::flat).transfer == Approx(3e6 / 20e9));
  CHECK(cost(nodes, Op::all_to_all, count, Sums::chained).transfer == Approx(48e6 / 20e9));
  auto const sum = cost(nodes, Op::reduce_scatter, count, Sums::chained);
  auto const both = cost(nodes, Op::all_reduce, 16 * count, Sums::chained);
  CHECK(both.algorithm == Algorithm::chained);
  CHECK(both.transfer == Approx(sum.transfer + gather.transfer));
  CHECK(both.latency == Approx(sum.latency + gather.latency - 22e-6));
  auto const small = cost(nodes, Op::all_reduce, 1024, Sums::chained);
  CHECK(small.algorithm == Algorithm::flat);
  CHECK(small.transfer == Approx(4. * 12. * 2048. / 20e9));
}

TEST_CASE("inside one node nothing is sent; one rank has nobody to talk to") {
  simulate::Placement const node{.size = 4, .per_node = 4};
  for (Sums const sums : {Sums::flat, Sums::chained, Sums::native, Sums::automatic}) {
    auto const sum = cost(node, Op::reduce_scatter, count, sums);
    CHECK(sum.algorithm == Algorithm::flat);
    CHECK(sum.latency == Approx(3e-6));
    CHECK(sum.transfer == Approx(3e6 / 100e9));
    CHECK(cost({.size = 1}, Op::all_reduce, count, sums).seconds() == 0.);
  }
}

TEST_CASE("a simulated rank over MPI takes MPI's times, in the types of the call") {
  plan::World world{plain(), Sums::chained};
  simulate::Communicator comm{world, nodes};
  auto memory = world.memory();
  void* const data = memory.allocator.allocate(64 << 20, 64, zero::Role::gradients);
  // Partial sums travel in fp32, whatever is added.
  double const expected = cost(nodes, Op::reduce_scatter, count, Sums::chained).seconds();
  for (zero::DType const dtype : {zero::DType::bf16, zero::DType::f32}) {
    double const before = world.timeline().now();
    zero::run(
        comm,
        {.op = Op::reduce_scatter, .dtype = dtype, .count = count, .send = data, .recv = data});
    CHECK(world.timeline().now() - before == Approx(expected));
  }
  plan::World rings{plain()};
  CHECK(rings.cost(nodes, {Op::reduce_scatter, count, 2, 4}).seconds() ==
        plan::cost(plain(), nodes, Op::reduce_scatter, 1e6).seconds());
  memory.allocator.deallocate(data, 64 << 20, 64);
}

}  // namespace
}  // namespace over_mpi_test
