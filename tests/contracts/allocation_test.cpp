/// A step allocates nothing: not the first one, not one that overflows, not one with new pointers.
#include "contracts/heap.hpp"
#include "contracts/lent_memory.hpp"
#include "contracts/loop.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace allocation_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

/// What is lent in turn, prepared so that lending it allocates nothing here.
template <class T>
struct Lent {
  explicit Lent(std::vector<zero::Tensor> const& tensors) : memory(tensors, true, true) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      auto const unit = static_cast<std::size_t>(tensors[t].unit);
      if (units.size() <= unit) units.resize(unit + 1);
      units[unit].push_back(memory.list()[t]);
    }
  }
  contracts::LentMemory<T> memory;
  std::vector<std::vector<std::span<T>>> units{};  ///< the same, unit by unit
};

struct Case {
  int micro_steps = 1;
  bool flat = false;
  bool by_unit = false;
  bool overlap = false;
};

struct Result {
  std::uint64_t allocations = 0;  ///< of all ranks, from the end of construction on
  int skipped = 0;                ///< steps, over all ranks
};

constexpr std::string_view group = "a name that no string has room for in itself";

template <class Optimizer>
Result five_steps(Case const& test) {
  using Parameter = typename Optimizer::Parameter;
  using Wire = typename Optimizer::Wire;
  std::atomic<std::uint64_t> allocations{0};
  std::atomic<int> skipped{0};
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto model = toy::model();
    model[1].group = group;
    Optimizer optimizer{watched.comm, model, zero::Bucket{12345}};
    toy::Run const run{.ranks = 3, .fault = {.step = 3}};
    std::array<Lent<Parameter>, 2> parameters{Lent<Parameter>(optimizer.tensors()),
                                              Lent<Parameter>(optimizer.tensors())};
    std::array<Lent<Wire>, 2> gradients{Lent<Wire>(optimizer.tensors()),
                                        Lent<Wire>(optimizer.tensors())};
    optimizer.set_lr(group, 0.01f);
    auto const before = heap::mine().allocations;
    for (long step = 0; step < 5; ++step) {
      // What has a rule of its own gets other ones.
      optimizer.set_lr(group, 0.01f / static_cast<float>(step + 1));
      optimizer.set_rule(group, optimizer.rule());
      optimizer.set_lr(0.02f / static_cast<float>(step + 1));
      auto const turn = static_cast<std::size_t>(step % 2);
      if constexpr (Optimizer::borrowed) {
        auto& [memory, units] = parameters[turn];
        memory.copy_from(parameters[1 - turn].memory);
        gradients[turn].memory.clear();
        if (test.by_unit) optimizer.bind_parameters(memory.flat());
        if (!test.by_unit) {
          contracts::lend(optimizer, test.flat, memory, gradients[turn].memory);
        }
      }
      if (step == 0) contracts::load(optimizer);
      if constexpr (Optimizer::borrowed) {
        for (int unit = 0; test.by_unit && unit < 7; ++unit) {
          optimizer.bind_gradients(unit, gradients[turn].units[static_cast<std::size_t>(unit)]);
        }
      }
      for (int micro = 0; micro < test.micro_steps; ++micro) {
        if (test.micro_steps > 1) optimizer.micro_step({.last = micro + 1 == test.micro_steps});
        contracts::pass(optimizer, run, step, inner.rank() * test.micro_steps + micro);
      }
      auto const report = optimizer.step(
          {.max_norm = 1., .non_finite = zero::NonFinite::skip, .overlap_publish = test.overlap});
      skipped += report.skipped ? 1 : 0;
    }
    optimizer.settle();
    allocations += heap::mine().allocations - before;
  });
  return {allocations, skipped};
}

template <class... Policies>
using Optimizer = contracts::WatchedOptimizer<Policies...>;

template <class OptimizerT>
void check(Case const& test) {
  INFO("stage " << OptimizerT::Stage::name << ", precision " << OptimizerT::Precision::name
                << ", borrowed " << OptimizerT::borrowed << ", flat " << test.flat
                << ", micro-steps " << test.micro_steps << ", overlap " << test.overlap);
  Result const result = five_steps<OptimizerT>(test);
  CHECK(result.allocations == 0);
  CHECK(result.skipped >= 3);
}

TEST_CASE("no step allocates under any stage, overflow and clipping included") {
  check<Optimizer<zero::stage::Replicated, Bf16>>({});
  check<Optimizer<zero::stage::Pos, Fp16>>({});
  check<Optimizer<zero::stage::Pos, Fp16>>({.overlap = true});
  check<Optimizer<zero::stage::PosG, zero::Fp32>>({});
  check<Optimizer<zero::stage::PosGP, Fp16>>({});
  // While micro-batches add up, in either place.
  check<Optimizer<zero::stage::PosG, Bf16, zero::AccumulateFull>>({.micro_steps = 3});
  check<Optimizer<zero::stage::PosGP, Bf16, zero::AccumulateShard>>({.micro_steps = 3});
  // With memory that is lent anew at other addresses.
  for (bool const flat : {false, true}) {
    check<contracts::Borrower<zero::stage::Replicated, zero::Fp32>>({.flat = flat});
    check<contracts::Borrower<zero::stage::PosG, Bf16>>({.flat = flat});
    check<contracts::Borrower<zero::stage::PosG, Bf16>>({.flat = flat, .by_unit = true});
  }
}

TEST_CASE("no step of several optimizers allocates") {
  std::atomic<std::uint64_t> allocations{0};
  std::atomic<int> skipped{0};
  zero::run_ranks(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    Optimizer<zero::stage::Pos, Fp16> a{watched.comm, toy::model()};
    Optimizer<zero::stage::PosG, zero::Fp32> b{watched.comm, toy::model()};
    contracts::load(a);
    contracts::load(b);
    auto const before = heap::mine().allocations;
    for (long step = 0; step < 4; ++step) {
      toy::Run const run{.fault = {.step = 2}};
      contracts::pass(a, run, step, inner.rank());
      contracts::pass(b, run, step, inner.rank());
      skipped += zero::step_together({.max_norm = 1.}, a, b).skipped ? 1 : 0;
    }
    allocations += heap::mine().allocations - before;
  });
  CHECK(allocations == 0);
  CHECK(skipped >= 3);
}

}  // namespace
}  // namespace allocation_test
