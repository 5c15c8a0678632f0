/// What ranks send: the paper's volumes where sizes divide, the plan's everywhere, in a fixed
/// order.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

namespace traffic_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using zero::Op;

template <class... Policies>
using Optimizer = contracts::WatchedOptimizer<Policies...>;

/// One collective without its addresses.
using Call = std::tuple<Op, zero::DType, std::size_t, int>;

/// What one step was.
struct Step {
  std::vector<zero::TrafficCounts> counts;  ///< by rank
  std::vector<std::vector<Call>> calls;     ///< by rank
  zero::Plan plan;
  std::vector<int> reductions;  ///< buckets in the partition's order
  bool skipped = false;
};

struct Case {
  int ranks = 2;
  int micro_steps = 1;
  std::size_t bucket_bytes = 6144 * 2;
  long data = 0;  ///< which step of the toy model
  toy::Fault fault{};
  bool any_order = false;  ///< odd ranks finish units in another order
  bool norm = false;       ///< asks for it before the step
};

/// Measures the second step: the first one learns nothing that the others do not know.
template <class O>
Step measure(std::vector<zero::Tensor> const& tensors, Case const& test) {
  auto const ranks = static_cast<std::size_t>(test.ranks);
  Step result{.counts = std::vector<zero::TrafficCounts>(ranks),
              .calls = std::vector<std::vector<Call>>(ranks),
              .plan = {},
              .reductions = {},
              .skipped = false};
  toy::Run const run{.fault = test.fault};
  zero::run_ranks(test.ranks, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& counted = watched.counted;
    auto& comm = watched.comm;
    O optimizer{comm, tensors, zero::Bucket{test.bucket_bytes}};
    contracts::load(optimizer);
    for (long const step : {1000L, test.data}) {
      counted.reset();
      comm.forget();
      for (int micro = 0; micro < test.micro_steps; ++micro) {
        if (test.micro_steps > 1) optimizer.micro_step({});
        if (test.any_order && inner.rank() % 2 == 1) {
          for (int const unit : optimizer.units()) {
            optimizer.reduce(contracts::unit_backward(optimizer, unit, run, step, inner.rank()));
          }
          continue;
        }
        contracts::pass(optimizer, run, step, inner.rank());
      }
      if (test.norm) static_cast<void>(optimizer.grad_norm());
      // Whoever asks for the end sends nothing besides.
      auto const report =
          optimizer.step({.non_finite = zero::NonFinite::skip, .stop = inner.rank() == 0});
      CHECK(report.stop);
      if (inner.rank() == 0) result.skipped = report.skipped;
    }
    auto const rank = static_cast<std::size_t>(inner.rank());
    result.counts[rank] = counted.counts();
    for (auto const& op : comm.calls()) {
      result.calls[rank].emplace_back(op.op, op.dtype, op.count, op.bucket);
    }
    if (rank != 0) return;
    result.plan = optimizer.plan(static_cast<std::uint64_t>(test.micro_steps));
    for (std::size_t const g : optimizer.partition().reduction_order()) {
      auto const& group = optimizer.partition().groups()[g];
      for (std::size_t i = 0; i < group.bucket_count; ++i) {
        result.reductions.push_back(static_cast<int>(group.first_bucket + i));
      }
    }
  });
  return result;
}

/// Counted elements and bytes against the plan's, on every rank.
void check_plan(Step const& step) {
  for (auto const& counts : step.counts) {
    CHECK(counts.bucket_of(Op::reduce_scatter).elements == step.plan.traffic.reduce);
    CHECK(counts.bucket_of(Op::all_gather).elements ==
          step.plan.traffic.publish + step.plan.traffic.gather);
    CHECK(counts.bucket_total().elements == step.plan.traffic.total());
    CHECK(counts.bucket_total().bytes == step.plan.sent.total());
  }
}

template <class O>
void check_formula(std::uint64_t passes) {
  constexpr std::uint64_t psi = 4 * 12288;
  for (int const ranks : {1, 2, 3, 4}) {
    INFO("stage " << O::Stage::name << ", ranks " << ranks);
    auto const n = static_cast<std::uint64_t>(ranks);
    Step const step = measure<O>(contracts::even_model(), {.ranks = ranks});
    for (auto const& counts : step.counts) {
      CHECK(counts.bucket_total().elements == passes * psi * (n - 1) / n);
      CHECK(counts.bucket_of(Op::reduce_scatter).elements == psi * (n - 1) / n);
    }
    check_plan(step);
  }
}

TEST_CASE("a rank sends 2Ψ(N-1)/N elements a step, and 3Ψ(N-1)/N under Pos+g+p") {
  check_formula<Optimizer<zero::stage::Replicated, Bf16>>(2);
  check_formula<Optimizer<zero::stage::Pos, Bf16>>(2);
  check_formula<Optimizer<zero::stage::PosG, Bf16>>(2);
  check_formula<Optimizer<zero::stage::PosGP, Bf16>>(3);
}

template <class O>
void check_awkward() {
  for (int const ranks : {1, 2, 3, 5}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, zero::MiB}) {
      INFO("stage " << O::Stage::name << ", ranks " << ranks << ", bucket " << bucket);
      check_plan(measure<O>(toy::model(), {.ranks = ranks, .bucket_bytes = bucket}));
    }
  }
}

TEST_CASE("odd, tied, frozen and empty tensors: what is sent is what was planned") {
  check_awkward<Optimizer<zero::stage::Replicated, Bf16>>();
  check_awkward<Optimizer<zero::stage::Pos, Bf16>>();
  check_awkward<Optimizer<zero::stage::PosG, Bf16>>();
  check_awkward<Optimizer<zero::stage::PosGP, Bf16>>();
}

TEST_CASE("frozen tensors send nothing") {
  using O = Optimizer<zero::stage::PosGP, Bf16>;
  auto const all = toy::model();
  std::vector<zero::Tensor> trained;
  std::vector<zero::Tensor> frozen;
  for (auto tensor : all) {
    if (!tensor.frozen) trained.push_back(tensor);
    tensor.frozen = true;
    frozen.push_back(tensor);
  }
  auto const with = measure<O>(all, {.ranks = 3});
  auto const without = measure<O>(trained, {.ranks = 3});
  auto const only = measure<O>(frozen, {.ranks = 3});
  CHECK(with.counts == without.counts);
  CHECK(with.counts[0].bucket_total().elements > 0);
  for (auto const& counts : only.counts) CHECK(counts.bucket_total().calls == 0);
}

TEST_CASE("micro-batches that meet in the shard travel every time, in full gradients once") {
  auto const tensors = contracts::even_model();
  constexpr std::uint64_t once = 4 * 12288 / 2;
  auto const shard = measure<Optimizer<zero::stage::PosG, Bf16, zero::AccumulateShard>>(
      tensors, {.micro_steps = 3});
  check_plan(shard);
  CHECK(shard.counts[0].bucket_of(Op::reduce_scatter).elements == 3 * once);
  CHECK(shard.counts[0].bucket_of(Op::all_gather).elements == once);
  auto const full = measure<Optimizer<zero::stage::PosG, Bf16, zero::AccumulateFull>>(
      tensors, {.micro_steps = 3});
  check_plan(full);
  CHECK(full.counts[0].bucket_of(Op::reduce_scatter).elements == once);
  CHECK(full.counts[0].bucket_of(Op::all_gather).elements == once);
}

TEST_CASE(
    "control traffic is one all-reduce a step, of a fixed size but for a bit of each tensor") {
  using O = Optimizer<zero::stage::PosG, Bf16>;
  for (int const ranks : {2, 4}) {
    for (auto const& tensors :
         {contracts::even_model(1), contracts::even_model(8, 3), toy::model()}) {
      // A word for every three tensors tells which of them have a gradient.
      std::size_t const words = zero::detail::StepControl::word_count + (tensors.size() + 2) / 3;
      for (auto const& counts : measure<O>(tensors, {.ranks = ranks}).counts) {
        CHECK(counts.control_total().calls == 1);
        CHECK(counts.control_of(Op::all_reduce).elements ==
              zero::elements_sent(Op::all_reduce, words, ranks));
        CHECK(counts.control_total().bytes < 4096);
      }
      // After grad_norm() ranks have yet to tell each other the step's options.
      for (auto const& counts : measure<O>(tensors, {.ranks = ranks, .norm = true}).counts) {
        CHECK(counts.control_total().calls == 2);
        CHECK(counts.control_of(Op::all_reduce).elements ==
              zero::elements_sent(Op::all_reduce, words, ranks) +
                  zero::elements_sent(Op::all_reduce, 2, ranks));
      }
    }
  }
}

template <class O>
void check_order(bool any_order) {
  INFO("stage " << O::Stage::name);
  auto const tensors = toy::model();
  Step const first = measure<O>(tensors, {.ranks = 3, .bucket_bytes = 1, .data = 1});
  Step const second =
      measure<O>(tensors, {.ranks = 3, .bucket_bytes = 1, .data = 77, .any_order = any_order});
  CHECK(first.calls[0].size() > 10);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(first.calls[rank] == first.calls[0]);
    CHECK(second.calls[rank] == first.calls[0]);
  }
  std::vector<int> reductions;
  for (auto const& call : first.calls[0]) {
    if (std::get<0>(call) == Op::reduce_scatter) reductions.push_back(std::get<3>(call));
  }
  CHECK(reductions == first.reductions);
  // Data that cannot be used end the step early, on all ranks alike.
  Step const bad = measure<O>(
      tensors, {.ranks = 3, .bucket_bytes = 1, .data = 5, .fault = {.step = 5, .micro_batch = 1}});
  CHECK(bad.skipped);
  CHECK_FALSE(first.skipped);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CHECK(bad.calls[rank] == bad.calls[0]);
    REQUIRE(bad.calls[rank].size() <= first.calls[0].size());
    CHECK(std::equal(bad.calls[rank].begin(), bad.calls[rank].end(), first.calls[0].begin()));
  }
}

TEST_CASE("collectives have one order, which neither data nor the trainer's order changes") {
  check_order<Optimizer<zero::stage::Replicated, Bf16>>(true);
  check_order<Optimizer<zero::stage::Pos, Bf16>>(true);
  check_order<Optimizer<zero::stage::PosG, Bf16>>(false);
  check_order<Optimizer<zero::stage::PosGP, Bf16>>(false);
}

}  // namespace
}  // namespace traffic_test
