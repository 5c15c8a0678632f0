// Costs of collectives and products, held against hand calculations; virtual time and memory.
#include "plan/model/step.hpp"
#include "plan/model/transformer.hpp"
#include "plan/model/world.hpp"
#include "plan/simulate/communicator.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace costs_test {
namespace {

namespace simulate = plan::simulate;
using plan::Algorithm;
using plan::Sums;
using zero::Op;
using zero::detail::NodeBlocks;

/// Relative: beside the absolute term of doctest's own microseconds are nothing.
doctest::Approx Approx(double value) { return doctest::Approx(value).scale(0.); }

/// 1 µs and 100 GB/s inside a node, 10 µs and two adapters of 10 GB/s between nodes.
plan::Cluster plain() {
  return {.name = "plain",
          .devices_per_node = 4,
          .device = {.memory_rate = 1e12, .flops = 1e14, .processors = 10, .launch = 1e-6},
          .inside = {.latency = 1e-6, .rate = 100e9},
          .between = {.latency = 10e-6, .rate = 10e9},
          .adapters = 2,
          .adapters_per_group = 2,
          .host = {.rate = 1e9}};
}

constexpr simulate::Placement nodes{.size = 16, .per_node = 4};

double seconds(simulate::Placement const& at, Op op, double block, Algorithm algorithm) {
  return plan::cost(plain(), at, op, block, algorithm).seconds();
}

TEST_CASE("one rank exchanges nothing") {
  for (Op const op : {Op::all_gather, Op::all_reduce, Op::all_to_all, Op::broadcast}) {
    CHECK(plan::cost(plain(), {.size = 1}, op, 1e9).seconds() == 0.);
  }
}

TEST_CASE("inside a node a ring sends all blocks but one") {
  simulate::Placement const node{.size = 4, .per_node = 4};
  double const ring = 3e-6 + 3. * 1e6 / 100e9;
  CHECK(seconds(node, Op::all_gather, 1e6, Algorithm::ring) == Approx(ring));
  CHECK(seconds(node, Op::reduce_scatter, 1e6, Algorithm::ring) == Approx(ring));
  CHECK(seconds(node, Op::all_reduce, 4e6, Algorithm::ring) == Approx(2. * ring));
  CHECK(seconds(node, Op::broadcast, 4e6, Algorithm::ring) == Approx(ring));
  CHECK(seconds(node, Op::all_gather, 1e6, Algorithm::tree) == Approx(2e-6 + 3. * 1e6 / 100e9));
}

TEST_CASE("between nodes the slower link counts, and adapters are shared") {
  double const all = 16e6;
  CHECK(seconds(nodes, Op::all_gather, 1e6, Algorithm::ring) ==
        Approx(15. * 10e-6 + 15. / 16. * all / 20e9));
  CHECK(seconds(nodes, Op::all_gather, 1e6, Algorithm::hierarchical) ==
        Approx(3e-6 + 0.75 * all / 100e9 + 3. * 10e-6 + 0.75 * all / 20e9));
  CHECK(seconds(nodes, Op::all_gather, 1e6, Algorithm::tree) ==
        Approx(2e-6 + 2. * 10e-6 + 0.75 * all / 20e9));
  CHECK(seconds(nodes, Op::all_to_all, 1e6, Algorithm::ring) ==
        Approx(3e-6 + 3e6 / 100e9 + 20e-6 + 4. * 12e6 / 20e9));
  // Four groups with a rank on each node: two adapters for all of them.
  simulate::Placement const axis{.size = 4, .per_node = 1, .sharing = 4};
  CHECK(seconds(axis, Op::all_gather, 1e6, Algorithm::ring) == Approx(3. * 10e-6 + 3e6 / 5e9));
}

TEST_CASE("the fastest algorithm is chosen: latency takes over from bytes") {
  simulate::Placement const many{.size = 65536, .per_node = 4};
  CHECK(plan::cost(plain(), many, Op::all_gather, 16.).algorithm == Algorithm::tree);
  // Of 65,535 latencies a flat ring has 0.66 s, however little it sends.
  CHECK(plan::cost(plain(), many, Op::all_gather, 16., Algorithm::ring).latency == Approx(0.65535));
  for (double const block : {16., 1e4, 1e7}) {
    double const best = plan::cost(plain(), many, Op::reduce_scatter, block).seconds();
    for (int i = 0; i < plan::algorithm_count; ++i) {
      CHECK(best <= seconds(many, Op::reduce_scatter, block, static_cast<Algorithm>(i)));
    }
  }
}

TEST_CASE("a link reaches what its curve says of the payload") {
  plan::Link const link{.rate = 8e9, .curve = {{1e3, 0.25}, {1e5, 0.75}, {1e6, 1.}}};
  CHECK(link.rate_of(10.) == Approx(2e9));
  CHECK(link.rate_of(1e3) == Approx(2e9));
  CHECK(link.rate_of(1e4) == Approx(4e9));
  CHECK(link.rate_of(1e5) == Approx(6e9));
  CHECK(link.rate_of(1e9) == Approx(8e9));
}

TEST_CASE("products take whole tiles and whole rounds of them") {
  plan::Device device = plain().device;
  double const of_tile = 2. * 128. * 128. * 4096. / (1e14 / 10.);
  CHECK(device.product(128. * 5., 256., 4096.) == Approx(1e-6 + of_tile));
  CHECK(device.product(128. * 5. + 1., 256., 4096.) == Approx(1e-6 + 2. * of_tile));
  CHECK(device.product(1., 1., 4096.) == Approx(1e-6 + of_tile));
  CHECK(device.product(128., 128., 4096., 10.) ==
        Approx(1e-6 + 10. * 2. * (2. * 128. * 4096. + 128. * 128.) / 1e12));
  device.memory_rate = 1e14;
  CHECK(device.product(128., 128., 4096., 20.) == Approx(1e-6 + 2. * of_tile));
  device.memory_rate = 1e12;
  // Nothing to compute, much to read.
  CHECK(device.product(1e6, 128., 1.) ==
        Approx(1e-6 + 2. * (1e6 + 128. + 128e6) / 1e12).epsilon(1e-3));
}

TEST_CASE("computation waits for what it needs, and for nothing else") {
  simulate::Timeline time;
  time.keep_events();
  time.compute(2., "forward", 1);
  double const first =
      time.communicate(Op::all_gather, {.latency = 0.5, .transfer = 2.5}, 7);       // 2 to 5
  double const second = time.communicate(Op::reduce_scatter, {.transfer = 1.}, 8);  // 5 to 6
  time.compute(1., "forward", 2);                                                   // 2 to 3
  CHECK(first == 5.);
  CHECK(second == 6.);
  time.await(Op::all_gather, first);
  CHECK(time.now() == 5.);
  CHECK(time.of(Op::all_gather).exposed == 2.);
  CHECK(time.of(Op::all_gather).busy == 3.);
  CHECK(time.of(Op::all_gather).latency == 0.5);
  time.compute(4., "backward");
  time.await(Op::reduce_scatter, second);
  CHECK(time.of(Op::reduce_scatter).exposed == 0.);
  time.block(Op::all_reduce, {.transfer = 0.5});
  CHECK(time.now() == 9.5);
  CHECK(time.exposed() == 2.5);
  CHECK(time.computed() == 7.);
  REQUIRE(time.events().size() == 6);
  CHECK(time.events()[1].number == 7);
  CHECK(time.events()[1].begin == 2.);
  CHECK(time.events()[1].end == 5.);
}

TEST_CASE("what goes over the same links at once shares them") {
  simulate::Timeline time;
  double const first = time.communicate(Op::all_gather, {.transfer = 2.}, 0);       // 0 to 2
  double const second = time.communicate(Op::reduce_scatter, {.transfer = 4.}, 1);  // 2 to 6
  // One second over links of its own, beside them.
  time.block(Op::all_reduce, {.latency = 0.25, .transfer = 0.75});
  CHECK(time.now() == 1.);
  // One second of bytes over theirs takes two, and they end a second later.
  time.block(Op::all_reduce, {.latency = 0.5, .transfer = 1.}, true);
  CHECK(time.now() == 3.5);
  double const last = time.communicate(Op::broadcast, {.transfer = 1.}, 2);  // 7 to 8
  time.await(Op::all_gather, first);
  CHECK(time.now() == 3.5);
  CHECK(time.of(Op::all_gather).exposed == 0.);
  time.await(Op::reduce_scatter, second);
  CHECK(time.now() == 7.);
  time.await(Op::broadcast, last);
  CHECK(time.now() == 8.);
  // Nothing is under way: it has the links for itself.
  time.block(Op::all_reduce, {.transfer = 1.}, true);
  CHECK(time.now() == 9.);
  // More than what is under way: that ends at half the speed, and delays it by as much.
  double const third = time.communicate(Op::all_gather, {.transfer = 1.}, 2);  // 9 to 10
  time.block(Op::all_reduce, {.transfer = 5.}, true);
  CHECK(time.now() == 15.);
  time.await(Op::all_gather, third);
  CHECK(time.now() == 15.);
}

TEST_CASE("links that are free at the end of a collective serve the next one") {
  simulate::Timeline time;
  double const first =
      time.communicate(Op::reduce_scatter, {.latency = 1., .transfer = 3., .free = 2.}, 0);
  double const second =
      time.communicate(Op::reduce_scatter, {.latency = 1., .transfer = 3., .free = 2.}, 1);
  CHECK(first == 4.);
  CHECK(second == 6.);
}

TEST_CASE("groups of one rank share its links: two at once take as long as one after another") {
  plan::World world{plain()};
  simulate::Communicator data{world, nodes};
  simulate::Communicator other{world, {.size = 8, .per_node = 4}};
  auto memory = world.memory();
  void* const bytes = memory.allocator.allocate(64 << 20, 64, zero::Role::gradients);
  zero::Collective const gather{
      .op = Op::all_gather, .count = 1'000'000, .send = bytes, .recv = bytes};
  auto of_data = data.start(gather);
  auto of_other = other.start(gather);
  data.wait(of_data);
  double const alone = world.timeline().now();
  CHECK(alone == Approx(plan::cost(plain(), nodes, Op::all_gather, 4e6).seconds()));
  other.wait(of_other);
  CHECK(world.timeline().now() - alone ==
        Approx(plan::cost(plain(), {.size = 8, .per_node = 4}, Op::all_gather, 4e6).seconds()));
  memory.allocator.deallocate(bytes, 64 << 20, 64);
}

TEST_CASE("a model over two nodes shares links with its data axis, one in a node does not") {
  for (int const model_parallel : {4, 8}) {
    plan::Setup const setup{.model = {.layers = 4, .hidden = 256, .heads = 16, .sequence = 256},
                            .ranks = 64,
                            .model_parallel = model_parallel,
                            .attention = "plain"};
    plan::World world{plain()};
    double const gathered = world.timeline().communicate(Op::all_gather, {.transfer = 1.}, 0);
    plan::Pass(world, setup).forward(1);
    auto const once =
        world.cost(plan::model_axis(setup, world.cluster()), {Op::all_reduce, 256 * 256, 2, 4});
    bool const shares = model_parallel == 8;
    double const waited = 2. * (once.seconds() + (shares ? once.transfer : 0.));
    CHECK(world.timeline().exposed() == Approx(waited));
    world.timeline().await(Op::all_gather, gathered);
    CHECK(world.timeline().now() == Approx(1. + (shares ? 2. * once.transfer : 0.)));
  }
}

TEST_CASE("tensors have addresses and no memory; words of control have both") {
  plan::World world{plain()};
  auto memory = world.memory();
  void* const a = memory.allocator.allocate(100, 4096, zero::Role::parameters);
  void* const b = memory.allocator.allocate(std::size_t{1} << 50, 4096, zero::Role::state);
  CHECK(simulate::Memory::simulated(a));
  CHECK(simulate::Memory::simulated(b));
  CHECK(reinterpret_cast<std::uintptr_t>(b) % 4096 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(b) >= reinterpret_cast<std::uintptr_t>(a) + 100);
  auto* const word = static_cast<std::int64_t*>(
      memory.allocator.allocate(sizeof(std::int64_t), 4096, zero::Role::control));
  CHECK(!simulate::Memory::simulated(word));
  simulate::Space const space = world.space();
  space.zero(word, sizeof(*word));
  CHECK(*word == 0);
  std::int64_t const seven = 7;
  space.upload(word, &seven, sizeof(seven));
  std::int64_t back = 0;
  space.download(&back, word, sizeof(back));
  CHECK(back == 7);
  double const before = world.timeline().now();
  space.copy(b, a, 1'000'000);
  CHECK(world.timeline().now() - before == Approx(1e-6 + 2e6 / 1e12));
  double const then = world.timeline().now();
  space.convert(static_cast<float*>(b), static_cast<zero::bf16*>(a), 1'000'000);
  CHECK(world.timeline().now() - then == Approx(1e-6 + 6e6 / 1e12));
  memory.allocator.deallocate(word, sizeof(*word), 4096);
  memory.allocator.deallocate(b, std::size_t{1} << 50, 4096);
}

TEST_CASE("words that all ranks bring add up; floating point of the host has no simulated sum") {
  plan::World world{plain()};
  simulate::Communicator comm{world, {.size = 3, .per_node = 2}, 1};
  using Words = std::vector<std::int64_t>;
  Words const each{1, 2, 3, 4, 5, 6};
  auto const run = [&](Op op, Words const& send, std::size_t received, zero::DType type) {
    Words words(received);
    zero::run(comm,
              {.op = op,
               .dtype = type,
               .accumulate = type,
               .count = 2,
               .send = send.data(),
               .recv = words.data()});
    return words;
  };
  constexpr auto i64 = zero::DType::i64;
  CHECK(run(Op::all_reduce, {5, -4}, 2, i64) == Words{15, -12});
  CHECK(run(Op::all_gather, {15, -12}, 6, i64) == Words{15, -12, 15, -12, 15, -12});
  CHECK(run(Op::all_to_all, each, 6, i64) == Words{3, 4, 3, 4, 3, 4});
  CHECK(run(Op::reduce_scatter, each, 2, i64) == Words{9, 12});
  CHECK_THROWS_AS(run(Op::all_reduce, {5, -4}, 2, zero::DType::f64), zero::Error);
}

TEST_CASE("clusters and groups that make no sense are refused, by name") {
  plan::Cluster cluster = plain();
  cluster.between.rate = 0.;
  CHECK_THROWS_WITH_AS(
      plan::World{cluster}, doctest::Contains("the rate between nodes is 0"), zero::Error);
  cluster = plain();
  cluster.inside.curve = {{1e3, 0.5}, {1e3, 1.}};
  CHECK_THROWS_WITH_AS(plan::World{cluster}, doctest::Contains("payload"), zero::Error);
  plan::World world{plain()};
  CHECK_THROWS_AS((simulate::Communicator{world, {.size = 0}}), zero::Error);
  CHECK_THROWS_AS((simulate::Communicator{world, {.size = 4}, 4}), zero::Error);
}

/// Two ranks; a reduce-scatter takes a second for each KiB.
plan::Cluster threads() {
  return {.name = "threads",
          .devices_per_node = 2,
          .device = {.memory_rate = 1e9,
                     .flops = 1e9,
                     .measured = {{.name = "reduce_scatter",
                                   .sizes = {{1024., 2048., 4096.}},
                                   .seconds = {1., 2., 4.}},
                                  {.name = "zero", .sizes = {{1.}}, .seconds = {3.}}}},
          .inside = {.rate = 1e3},
          .between = {.rate = 1e9},
          .host = {.rate = 1e9},
          .by_ranks = true};
}

TEST_CASE("a collective that ranks carry out takes its time when they wait, beside nothing") {
  simulate::Timeline time(true);
  double const first = time.communicate(Op::reduce_scatter, {.latency = 1., .transfer = 2.}, 0);
  time.compute(10., "backward");
  CHECK(time.now() == Approx(10.));  // nobody has worked on it yet
  time.await(Op::reduce_scatter, first);
  CHECK(time.now() == Approx(13.));
  time.await(Op::reduce_scatter, first);
  CHECK(time.now() == Approx(13.));  // done is done
  CHECK(time.of(Op::reduce_scatter).exposed == Approx(3.));
  CHECK(time.computed() == Approx(10.));
}

TEST_CASE("who waits for a later one has carried out those before it") {
  simulate::Timeline time(true);
  double const first = time.communicate(Op::all_gather, {.transfer = 2.}, 0);
  double const second = time.communicate(Op::all_gather, {.transfer = 5.}, 1);
  time.await(Op::all_gather, second);
  CHECK(time.now() == Approx(7.));
  time.await(Op::all_gather, first);
  CHECK(time.now() == Approx(7.));
}

TEST_CASE("a collective that was measured costs what was measured, by its larger buffer") {
  simulate::Placement const two{.size = 2, .per_node = 2};
  auto const seconds = [&](Op op, double block) {
    return plan::cost(threads(), two, op, block).seconds();
  };
  CHECK(seconds(Op::reduce_scatter, 1024.) == Approx(2.));
  CHECK(seconds(Op::reduce_scatter, 2048.) == Approx(4.));
  CHECK(plan::cost(threads(), two, Op::reduce_scatter, 2048.).latency == Approx(1.));
  CHECK(seconds(Op::reduce_scatter, 0.) == 0.);
  CHECK(seconds(Op::all_gather, 1000.) == Approx(1.));  // was not: half of it over a link
  CHECK(refusal([] {
          simulate::Placement const three{.size = 3, .per_node = 3};
          static_cast<void>(plan::cost(threads(), three, Op::reduce_scatter, 8.));
        }).find("measured on 2 ranks, not on 3") != std::string::npos);
}

TEST_CASE("the library's own step runs on it, and none of its time is hidden") {
  plan::World world(threads());
  simulate::Communicator comm(world, {.size = 2, .per_node = 2});
  std::vector<zero::Tensor> const model{{.name = "a", .shape = {4096}, .unit = 0},
                                        {.name = "b", .shape = {4096}, .unit = 1}};
  zero::ShardedOptimizer optimizer(
      comm, model, zero::stage::PosG{}, zero::Fp32{}, zero::Bucket{4096 * 4}, world.memory());
  optimizer.adopt_parameters();
  for (int step = 0; step < 2; ++step) {
    for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit));
    for (int const unit : optimizer.units_backward()) {
      optimizer.reduce(optimizer.gradients(unit));
      world.timeline().compute(1., "backward", unit);
    }
    optimizer.step();
  }
  auto const& sums = world.timeline().of(Op::reduce_scatter);
  CHECK(sums.calls >= 4);
  CHECK(sums.exposed == Approx(sums.busy));
}

// Of zero::Mpi, over nodes that do not exist.
constexpr std::uint64_t count = 500'000;  // 1 MB, 2 MB of partial sums

plan::CollectiveCost over_mpi(simulate::Placement const& at,
                              Op op,
                              std::uint64_t elements,
                              Sums sums) {
  return plan::cost_over_mpi(plain(), at, op, elements, 2, 4, sums);
}

TEST_CASE("bytes of a node: every pair, one partial sum, one result, one copy a node") {
  NodeBlocks const node{
      .ranks = 11, .here = 4, .nodes = 3, .count = 5000, .element = 2, .accumulate = 4};
  CHECK(node.flat() == 4 * 7 * 10'000);
  CHECK(node.chained() == 11 * 20'000);
  CHECK(node.chained(true) == 7 * 10'000);
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

TEST_CASE("sums over nodes: as long as the adapters have bytes") {
  auto const flat = over_mpi(nodes, Op::reduce_scatter, count, Sums::flat);
  CHECK(flat.algorithm == Algorithm::flat);
  CHECK(flat.latency == Approx(10e-6));
  CHECK(flat.transfer == Approx(4. * 12. * 1e6 / 20e9));
  auto const chained = over_mpi(nodes, Op::reduce_scatter, count, Sums::chained);
  CHECK(chained.algorithm == Algorithm::chained);
  CHECK(chained.latency == Approx(10e-6 + 3. * 10e-6));
  CHECK(chained.transfer == Approx((16. * 2e6 + 3. * 4. * 2e6 / 16.) / 20e9));
  // Links have nothing to do but to send a node's bytes.
  CHECK(chained.seconds() - chained.free == Approx(16. * 2e6 / 20e9));
  CHECK(flat.seconds() - flat.free == Approx(flat.transfer));
  // A block is a piece if it is smaller.
  CHECK(over_mpi(nodes, Op::reduce_scatter, 100, Sums::chained).transfer ==
        Approx((16. * 400. + 3. * 4. * 400.) / 20e9));
  CHECK(over_mpi(nodes, Op::reduce_scatter, count, Sums::automatic).algorithm ==
        Algorithm::chained);
  simulate::Placement const singles{.size = 16, .per_node = 1};
  CHECK(over_mpi(singles, Op::reduce_scatter, count, Sums::automatic).algorithm == Algorithm::flat);
  simulate::Placement const shared{.size = 16, .per_node = 1, .sharing = 4};
  CHECK(over_mpi(shared, Op::reduce_scatter, count, Sums::flat).transfer ==
        Approx(15. * 1e6 / 5e9));
}

TEST_CASE("where adapters are fast, what ranks of a node read of each other counts") {
  plan::Cluster cluster = plain();
  cluster.between.rate = 1e15;
  auto const transfer = [&](Op op, Sums sums) {
    return plan::cost_over_mpi(cluster, nodes, op, count, 2, 4, sums).transfer;
  };
  CHECK(transfer(Op::reduce_scatter, Sums::flat) == Approx(3e6 / 100e9).epsilon(1e-2));
  CHECK(transfer(Op::reduce_scatter, Sums::chained) == Approx(12e6 / 100e9).epsilon(1e-2));
  CHECK(transfer(Op::all_gather, Sums::flat) == Approx(15e6 / 100e9).epsilon(1e-2));
}

TEST_CASE("gathers reach a node once; an all-reduce is a sum of shares and a gather") {
  auto const gather = over_mpi(nodes, Op::all_gather, count, Sums::flat);
  CHECK(gather.algorithm == Algorithm::relayed);
  CHECK(gather.latency == Approx(10e-6 + 1e-6));
  CHECK(gather.transfer == Approx(4. * 3. * 1e6 / 20e9));
  CHECK(over_mpi(nodes, Op::broadcast, count, Sums::flat).transfer == Approx(3e6 / 20e9));
  CHECK(over_mpi(nodes, Op::all_to_all, count, Sums::chained).transfer == Approx(48e6 / 20e9));
  auto const sum = over_mpi(nodes, Op::reduce_scatter, count, Sums::chained);
  auto const both = over_mpi(nodes, Op::all_reduce, 16 * count, Sums::chained);
  CHECK(both.algorithm == Algorithm::chained);
  CHECK(both.transfer == Approx(sum.transfer + gather.transfer));
  CHECK(both.latency == Approx(sum.latency + gather.latency));
  auto const small = over_mpi(nodes, Op::all_reduce, 1024, Sums::chained);
  CHECK(small.algorithm == Algorithm::flat);
  CHECK(small.transfer == Approx(4. * 12. * 2048. / 20e9));
}

TEST_CASE("inside one node nothing is sent; one rank has nobody to talk to") {
  simulate::Placement const node{.size = 4, .per_node = 4};
  for (Sums const sums : {Sums::flat, Sums::chained, Sums::automatic}) {
    auto const sum = over_mpi(node, Op::reduce_scatter, count, sums);
    CHECK(sum.algorithm == Algorithm::flat);
    CHECK(sum.latency == Approx(1e-6));
    CHECK(sum.transfer == Approx(3e6 / 100e9));
    CHECK(over_mpi({.size = 1}, Op::all_reduce, count, sums).seconds() == 0.);
  }
}

TEST_CASE("a simulated rank over MPI takes MPI's times, in the types of the call") {
  plan::World world{plain(), Sums::chained};
  simulate::Communicator comm{world, nodes};
  auto memory = world.memory();
  void* const data = memory.allocator.allocate(64 << 20, 64, zero::Role::gradients);
  // Partial sums travel in fp32, whatever is added.
  double const expected = over_mpi(nodes, Op::reduce_scatter, count, Sums::chained).seconds();
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
}  // namespace costs_test
