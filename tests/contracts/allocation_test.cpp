/// A step allocates nothing: not the first one, not one that overflows, not one with new pointers.
#include "contracts/heap.hpp"
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace allocation_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

/// Two buffers to lend in turn, prepared so that lending them allocates nothing here.
template <class T>
struct Lent {
  explicit Lent(std::vector<zero::Tensor> const& tensors) {
    auto const count_of = [](zero::Tensor const& tensor) {
      return tensor.tied_to.empty() ? zero::element_count(tensor) : 0;
    };
    std::size_t total = 0;
    for (auto const& tensor : tensors) total += count_of(tensor);
    for (std::size_t turn = 0; turn < 2; ++turn) {
      flat[turn].assign(total, T(0.f));
      std::size_t used = 0;
      for (auto const& tensor : tensors) {
        list[turn].push_back(std::span(flat[turn]).subspan(used, count_of(tensor)));
        auto const unit = static_cast<std::size_t>(tensor.unit);
        if (units[turn].size() <= unit) units[turn].resize(unit + 1);
        units[turn][unit].push_back(list[turn].back());
        used += count_of(tensor);
      }
    }
  }
  std::array<std::vector<T>, 2> flat;
  std::array<std::vector<std::span<T>>, 2> list;
  std::array<std::vector<std::vector<std::span<T>>>, 2> units;  ///< the same, unit by unit
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
    Lent<Parameter> parameters(optimizer.tensors());
    Lent<Wire> gradients(optimizer.tensors());
    optimizer.set_lr(group, 0.01f);
    auto const before = heap::mine().allocations;
    for (long step = 0; step < 5; ++step) {
      // What has a rule of its own gets other ones.
      optimizer.set_lr(group, 0.01f / static_cast<float>(step + 1));
      optimizer.set_rule(group, optimizer.rule());
      optimizer.set_lr(0.02f / static_cast<float>(step + 1));
      auto const turn = static_cast<std::size_t>(step % 2);
      if constexpr (Optimizer::borrowed) {
        std::copy(parameters.flat[1 - turn].begin(),
                  parameters.flat[1 - turn].end(),
                  parameters.flat[turn].begin());
        std::fill(gradients.flat[turn].begin(), gradients.flat[turn].end(), Wire(0.f));
        if (test.by_unit) {
          optimizer.bind_parameters(std::span(parameters.flat[turn]));
        } else if (test.flat) {
          optimizer.bind(std::span(parameters.flat[turn]), std::span(gradients.flat[turn]));
        } else {
          optimizer.bind(std::span<std::span<Parameter> const>(parameters.list[turn]),
                         std::span<std::span<Wire> const>(gradients.list[turn]));
        }
      }
      if (step == 0) contracts::load(optimizer);
      if constexpr (Optimizer::borrowed) {
        for (int unit = 0; test.by_unit && unit < 7; ++unit) {
          optimizer.bind_gradients(unit, gradients.units[turn][static_cast<std::size_t>(unit)]);
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
}

TEST_CASE("no step allocates while micro-batches add up, in either place") {
  check<Optimizer<zero::stage::PosG, Fp16, zero::AccumulateFull>>({.micro_steps = 3});
  check<Optimizer<zero::stage::PosGP, Bf16, zero::AccumulateShard>>({.micro_steps = 3});
}

TEST_CASE("no step allocates with borrowed memory that is lent anew at other addresses") {
  for (bool const flat : {false, true}) {
    check<Optimizer<zero::stage::Replicated, zero::Fp32, zero::Borrowed<>>>({.flat = flat});
    check<Optimizer<zero::stage::PosG, Bf16, zero::Borrowed<>>>({.flat = flat});
    check<Optimizer<zero::stage::PosG, Bf16, zero::Borrowed<>>>({.flat = flat, .by_unit = true});
  }
}

}  // namespace
}  // namespace allocation_test
