// What groups were told is the trainer's: who says it again goes on to the same bits, on other
// ranks and stages, and who does not is told.
#include "checkpoint/temporary_directory.hpp"
#include "zero/checkpoint.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace groups_test {
namespace {

constexpr int saved_at = 5;
using Differing = std::vector<std::string>;

std::vector<zero::Tensor> model() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w", .shape = {2, 30, 50}, .unit = 1, .stacked = true, .group = "layers"},
          {.name = "mask", .shape = {7}, .unit = 1, .frozen = true},
          {.name = "b", .shape = {5}, .unit = 2, .group = "bias"}};
}

void load(auto& optimizer, float by) {
  optimizer.load_parameters([&](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = by * static_cast<float>(first + i);
  });
}

/// The schedule of a step, which a trainer that resumes knows as well.
void tell(auto& optimizer, int step) {
  optimizer.set_lr(0.1f / static_cast<float>(step + 1));
  optimizer.set_rule("layers", {.lr = 0.02f, .beta1 = step < 2 ? 0.5 : 0.75});
  optimizer.set_lr("bias", 0.25f / static_cast<float>(step + 1));
}
/// Counts that a trainer keeps; unit 2 rests now and then.
void train(auto& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    tell(optimizer, step);
    for (int const unit : optimizer.units_backward()) {
      if (unit == 2 && step % 3 == 1) {
        optimizer.without_gradient(unit);
        continue;
      }
      auto gradients = optimizer.gradients(unit);
      for (std::size_t t = 0; t < gradients.size(); ++t) {
        std::size_t i = 0;
        for (auto& gradient : gradients[t]) {
          gradient += static_cast<float>(static_cast<int>(i++ % 5) - 2 + step + unit);
        }
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step({.count = 10 * step + 1});
  }
}

std::vector<std::uint32_t> bits_of(auto& optimizer) {
  std::vector<std::uint32_t> bits;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (float const value : all[t]) bits.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return bits;
}

TEST_CASE("a run whose groups are told again goes on to the same bits") {
  checkpoint_tests::TemporaryDirectory const directory;
  std::vector<std::uint32_t> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosG{}};
    load(optimizer, 0.01f);
    train(optimizer, 0, saved_at);
    zero::Checkpoints run{directory.path()};
    run.save(optimizer);
    train(optimizer, saved_at, saved_at + 3);
    auto const bits = bits_of(optimizer);
    if (comm.rank() == 0) expected = bits;
  });
  for (int const ranks : {1, 2, 4}) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosGP{}};
      load(optimizer, 1.f);
      zero::Checkpoints run{directory.path()};
      auto const found = run.latest(optimizer).value();
      CHECK(run.load(optimizer, found).differing ==
            Differing{"rule.fields.lr: 0.019999999552965164 saved, 0.0010000000474974513 here",
                      "own_rules.bias: {\"beta1\":0.9,\"beta2\":0.999,\"eps\":9.99999993922529e-09,"
                      "\"lr\":0.05000000074505806,\"maximize\":0.0,"
                      "\"weight_decay\":0.009999999776482582} saved, null here",
                      "own_rules.layers: {\"beta1\":0.75,\"beta2\":0.999,\"eps\":"
                      "9.99999993922529e-09,\"lr\":0.019999999552965164,\"maximize\":0.0,"
                      "\"weight_decay\":0.009999999776482582} saved, null here"});
      CHECK(optimizer.rule(1) == zero::AdamW{});
      CHECK(optimizer.counters().step == 41);
      CHECK(optimizer.counters().steps == std::vector<long>{41, 41, 31, 41, 31});
      // Before or after the load.
      tell(optimizer, saved_at - 1);
      optimizer.set_rule("layers", {.lr = 0.5f, .beta1 = 0.75});
      CHECK(run.load(optimizer, found).differing ==
            Differing{"own_rules.layers.lr: 0.019999999552965164 saved, 0.5 here"});
      train(optimizer, saved_at, saved_at + 3);
      CHECK(bits_of(optimizer) == expected);
    });
  }
}

}  // namespace
}  // namespace groups_test
