// Ranks that carry out collectives themselves: threads of one process, as they were measured.
#include "plan/model/collectives.hpp"
#include "plan/model/step.hpp"
#include "plan/model/transformer.hpp"
#include "plan/model/world.hpp"
#include "planner/approx.hpp"
#include "zero/simulate/communicator.hpp"
#include "zero/simulate/timeline.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace by_ranks_test {
namespace {

using tests::Approx;

namespace simulate = zero::simulate;
using simulate::Timeline;
using zero::Op;

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
  Timeline time(true);
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
  Timeline time(true);
  double const first = time.communicate(Op::all_gather, {.transfer = 2.}, 0);
  double const second = time.communicate(Op::all_gather, {.transfer = 5.}, 1);
  time.await(Op::all_gather, second);
  CHECK(time.now() == Approx(7.));
  time.await(Op::all_gather, first);
  CHECK(time.now() == Approx(7.));
}

TEST_CASE("links of their own work beside computation") {
  Timeline time;
  double const end = time.communicate(Op::all_gather, {.transfer = 3.}, 0);
  time.compute(2., "forward");
  time.await(Op::all_gather, end);
  CHECK(time.now() == Approx(3.));
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
  std::string why;
  try {
    static_cast<void>(plan::cost(threads(), {.size = 3, .per_node = 3}, Op::reduce_scatter, 8.));
  } catch (zero::Error const& error) {
    why = error.message();
  }
  CHECK(why.find("measured on 2 ranks, not on 3") != std::string::npos);
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

}  // namespace
}  // namespace by_ranks_test
