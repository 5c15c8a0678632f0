/// What ranks send: the paper's volumes where sizes divide, in a fixed order. That it is the plan's
/// everywhere is checked by `differential`. And units that are gathered together: who reads what
/// when changes traffic at most, never a value.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

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
  Step result;
  result.counts.resize(ranks);
  result.calls.resize(ranks);
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
          step.plan.traffic.publish + step.plan.traffic.gather + step.plan.traffic.frozen);
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

/// Four units of which each has frozen tensors, too, that need no padding on up to four ranks.
/// Those of the last unit are tied to the first one's.
std::vector<zero::Tensor> frozen_model() {
  auto tensors = contracts::even_model();
  for (int unit = 0; unit < 4; ++unit) {
    std::string const name = "f" + std::to_string(unit);
    tensors.push_back({.name = name, .shape = {6144}, .unit = unit, .frozen = true});
  }
  tensors.back().tied_to = "f0";
  return tensors;
}

template <class O>
void check_frozen(int micro_steps) {
  constexpr std::uint64_t psi = 4 * 12288;
  constexpr std::uint64_t gathered_frozen = 4 * 6144;
  constexpr bool gathers = O::Stage::sharding.parameters;
  auto tensors = frozen_model();
  for (bool const whole : {false, true}) {
    for (zero::Tensor& tensor : tensors) tensor.whole = whole && tensor.frozen;
    for (int const ranks : {1, 2, 3, 4}) {
      INFO("stage " << O::Stage::name << ", ranks " << ranks << ", whole " << whole);
      auto const n = static_cast<std::uint64_t>(ranks);
      std::uint64_t const passes = gathers ? 2 * static_cast<std::uint64_t>(micro_steps) : 1;
      std::uint64_t const trained = passes * psi * (n - 1) / n;
      std::uint64_t const frozen =
          gathers && !whole ? passes * gathered_frozen * (n - 1) / n : std::uint64_t{0};
      Step const step = measure<O>(tensors, {.ranks = ranks, .micro_steps = micro_steps});
      CHECK(step.plan.traffic.frozen == frozen);
      CHECK(step.plan.sent.frozen == 2 * frozen);
      check_plan(step);
      for (auto const& counts : step.counts) {
        CHECK(counts.bucket_of(Op::all_gather).elements == trained + frozen);
        CHECK(counts.control_total().elements ==
              zero::elements_sent(
                  Op::all_reduce, zero::detail::StepControl::word_count + tensors.size(), ranks));
      }
    }
  }
}

TEST_CASE("frozen tensors are gathered as trained ones are, and send nothing else") {
  check_frozen<Optimizer<zero::stage::Replicated, Bf16>>(1);
  check_frozen<Optimizer<zero::stage::Pos, Bf16>>(1);
  check_frozen<Optimizer<zero::stage::PosG, Bf16>>(1);
  check_frozen<Optimizer<zero::stage::PosGP, Bf16>>(1);
  check_frozen<Optimizer<zero::stage::PosGP, Bf16, zero::AccumulateShard>>(3);
}

TEST_CASE("where every rank updates everything, the next bucket travels while one is updated") {
  zero::run_ranks(3, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    Optimizer<zero::stage::Replicated, Bf16> optimizer{
        watched.comm, frozen_model(), zero::Bucket{6144 * 2}};
    contracts::load(optimizer);
    for (long const step : {0L, 1L}) {
      contracts::pass(optimizer, {}, step, inner.rank());
      static_cast<void>(optimizer.grad_norm());  // reduces all
      CHECK(watched.comm.under_way() == 0);
      watched.comm.forget();
      optimizer.step();
      CHECK(watched.comm.most_under_way() == 2);
      CHECK(watched.comm.under_way() == 0);
    }
  });
}

TEST_CASE("micro-batches that meet in the shard travel every time, in full gradients once") {
  auto const tensors = contracts::even_model();
  constexpr std::uint64_t once = 4 * 12288 / 2;
  auto const check = [&](Step const& step, std::uint64_t times) {
    check_plan(step);
    CHECK(step.counts[0].bucket_of(Op::reduce_scatter).elements == times * once);
    CHECK(step.counts[0].bucket_of(Op::all_gather).elements == once);
  };
  Case const test{.micro_steps = 3};
  check(measure<Optimizer<zero::stage::PosG, Bf16, zero::AccumulateShard>>(tensors, test), 3);
  check(measure<Optimizer<zero::stage::PosG, Bf16, zero::AccumulateFull>>(tensors, test), 1);
}

TEST_CASE(
    "control traffic is one all-reduce a step, of a fixed size but for a word of each tensor") {
  using O = Optimizer<zero::stage::PosG, Bf16>;
  for (int const ranks : {2, 4}) {
    for (auto const& tensors :
         {contracts::even_model(1), contracts::even_model(8, 3), toy::model()}) {
      // A word of each tensor tells on how many ranks it has a gradient.
      std::size_t const words = zero::detail::StepControl::word_count + tensors.size();
      for (bool const norm : {false, true}) {
        // After grad_norm() ranks have yet to tell each other the step's options.
        std::uint64_t const expected = zero::elements_sent(Op::all_reduce, words, ranks) +
                                       (norm ? zero::elements_sent(Op::all_reduce, 11, ranks) : 0);
        for (auto const& counts : measure<O>(tensors, {.ranks = ranks, .norm = norm}).counts) {
          CHECK(counts.control_total().calls == (norm ? 2 : 1));
          CHECK(counts.control_of(Op::all_reduce).elements == expected);
          CHECK(counts.control_total().bytes < 4096);
        }
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

TEST_CASE("optimizers that step together send what each would send alone") {
  zero::run_ranks(3, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& counted = watched.counted;
    Optimizer<zero::stage::PosG, Bf16> a{watched.comm, contracts::even_model()};
    Optimizer<zero::stage::PosGP, Bf16> b{watched.comm, toy::model()};
    contracts::load(a);
    contracts::load(b);
    std::vector<zero::TrafficCounts> counts;
    for (bool const together : {true, false, true}) {
      counted.reset();
      contracts::pass(a, {}, 0, inner.rank());
      contracts::pass(b, {}, 0, inner.rank());
      if (together) {
        zero::step_together({}, a, b);
      } else {
        a.step();
        b.step();
      }
      counts.push_back(counted.counts());
    }
    // The first step compares initial values.
    CHECK(counts[2].bucket == counts[1].bucket);
    CHECK(counts[2].control_total().calls == 2);
    CHECK(counts[2].control_total().elements == counts[1].control_total().elements);
    CHECK(counts[2].bucket_total().elements == a.plan().traffic.total() + b.plan().traffic.total());
  });
}

using Gathered = contracts::WatchedOptimizer<zero::stage::PosGP, zero::Mixed<zero::bf16>>;

/// On 4 ranks, of which the smallest bucket is 2048 elements: units {0, 1}, {2 .. 5} and {6, 7} are
/// gathered together, 4 being frozen and whole.
std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  for (std::size_t const size : {600u, 600u, 7000u, 10u, 9u, 20u, 3000u, 500u}) {
    auto const unit = static_cast<int>(tensors.size());
    tensors.push_back({.name = "w" + std::to_string(unit),
                       .shape = {size},
                       .unit = unit,
                       .frozen = unit == 4,
                       .whole = unit == 4});
  }
  return tensors;
}
constexpr int ranks = 4;
constexpr int groups = 3;

/// Are these the values of a unit that were loaded?
template <class View>
bool right(View const& view, int unit) {
  auto const t = static_cast<std::size_t>(unit);
  bool same = view.size() == 1;
  for (std::size_t i = 0; same && i < view[0].size(); ++i) {
    same =
        static_cast<float>(view[0][i]) == static_cast<float>(zero::bf16(toy::initial_value(t, i)));
  }
  return same;
}

/// Runs `body(optimizer, recording)` on every rank, the model's values being loaded.
template <class Body>
void run(int prefetch, Body const& body) {
  zero::run_ranks(ranks, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    Gathered optimizer{watched.comm, model(), zero::Prefetch{prefetch}};
    contracts::load(optimizer);
    watched.comm.forget();
    body(optimizer, watched.comm);
  });
}

/// Gathers that were started since the last call, by the first unit of what they brought.
template <class O, class C>
std::vector<int> gathered(O const& optimizer, C& comm) {
  std::vector<int> firsts;
  for (zero::Collective const& call : comm.calls()) {
    if (call.op != Op::all_gather) continue;
    auto const bucket = optimizer.partition().bucket(static_cast<std::size_t>(call.bucket));
    firsts.push_back(optimizer.partition().groups()[bucket.group()].units.front());
  }
  comm.forget();
  return firsts;
}

using Firsts = std::vector<int>;

TEST_CASE("the model's small units share gather groups, and the plan says so") {
  run(1, [](auto& optimizer, auto&) {
    auto const plan = optimizer.plan();
    CHECK(optimizer.partition().gather_groups().size() == groups);
    CHECK(plan.joined_units == 7);
    CHECK(plan.joined_groups == groups);
    CHECK(plan.memory == optimizer.held());
    // Two slots of the largest one, which is no larger than unit 2 alone.
    CHECK(plan.memory[zero::Role::gather_pool] == 2 * 8192 * 2);
  });
  // No gather group needs two.
  run(100, [](auto& optimizer, auto&) {
    CHECK(optimizer.held()[zero::Role::gather_pool] == groups * 8192 * 2);
  });
}

TEST_CASE("a gather group is gathered by its first reader, and given back by its last one") {
  run(0, [](auto& optimizer, auto& comm) {
    constexpr int units[]{0, 1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1, 0};
    // 7 again: the group's last reader is gone.
    constexpr int gathers[]{0, -1, 2, -1, -1, -1, 6, -1, 6, -1, 2, -1, -1, -1, 0, -1};
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t i = 0; i < std::size(units); ++i) {
        CHECK(right(optimizer.parameters(units[i]), units[i]));
        CHECK(gathered(optimizer, comm) == (gathers[i] < 0 ? Firsts{} : Firsts{gathers[i]}));
      }
    }
  });
}

TEST_CASE("passes that begin where the last one began gather every group once, too") {
  run(0, [](auto& optimizer, auto& comm) {
    for (int pass = 0; pass < 2; ++pass) {
      for (int const unit : optimizer.units()) CHECK(right(optimizer.parameters(unit), unit));
      CHECK(gathered(optimizer, comm) == Firsts{0, 2, 6});
    }
  });
}

TEST_CASE("guards that overlap keep a gather group no longer than its units need it") {
  run(0, [](auto& optimizer, auto& comm) {
    {
      auto const first = optimizer.parameters(6);
      CHECK(right(optimizer.parameters(7), 7));
      CHECK(right(first, 6));
    }
    CHECK(gathered(optimizer, comm) == Firsts{6});
    // As gone as after the last unit's own guard.
    CHECK(right(optimizer.parameters(7), 7));
    CHECK(gathered(optimizer, comm) == Firsts{6});
  });
}

TEST_CASE("units of one gather group may be held at once, whatever is gathered ahead") {
  for (int const prefetch : {0, 1, 2}) {
    run(prefetch, [&](auto& optimizer, auto&) {
      auto const second = optimizer.parameters(3);
      auto const third = optimizer.parameters(5);
      auto const first = optimizer.parameters(2);
      CHECK((right(first, 2) && right(second, 3) && right(third, 5)));
      if (prefetch == 0) {
        CHECK_THROWS_AS(static_cast<void>(optimizer.parameters(6)), zero::Error);
      } else {
        for (int const unit : {6, 7, 0, 1, 7}) CHECK(right(optimizer.parameters(unit), unit));
      }
      CHECK((right(first, 2) && right(second, 3) && right(third, 5)));
    });
  }
}

TEST_CASE("a gather group whose other units are skipped does not stand in the way of the next") {
  run(1, [](auto& optimizer, auto& comm) {
    CHECK(right(optimizer.parameters(0), 0));
    CHECK(gathered(optimizer, comm) == Firsts{0, 2});
    // Unit 1 is skipped: what was gathered for it makes room for what comes next.
    CHECK(right(optimizer.parameters(2), 2));
    CHECK(gathered(optimizer, comm) == Firsts{6});
    CHECK(right(optimizer.parameters(7), 7));
    CHECK(gathered(optimizer, comm) == Firsts{});
  });
}

TEST_CASE("a gather group whose gradients are not complete is named by the unit that is missing") {
  run(1, [](auto& optimizer, auto& comm) {
    // Their groups wait for unit 7, and for units 3 to 5.
    for (int const unit : {6, 2}) optimizer.reduce(optimizer.gradients(unit));
    CHECK(refusal([&] { return optimizer.gradients(1); })
              .starts_with("unit 1 finds the gradient pool full of units that are yet to be "
                           "reduced; unit 7 is "));
    for (int const unit : {7, 5, 4, 3, 1, 0}) optimizer.reduce(optimizer.gradients(unit));
    CHECK(optimizer.step().step == 1);
    CHECK(comm.under_way() == 0);
  });
}

}  // namespace
}  // namespace traffic_test
