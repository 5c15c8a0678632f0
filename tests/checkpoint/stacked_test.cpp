// Stacked tensors are saved layer by layer: on other ranks and stages, and by whoever describes
// every layer, a run goes on to the same bits.
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

namespace stacked_test {
namespace {

constexpr int saved_at = 3;

std::vector<zero::Tensor> stacked() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w", .shape = {2, 30, 50}, .unit = 1, .stacked = true},
          {.name = "mask", .shape = {2, 7}, .unit = 1, .frozen = true, .stacked = true},
          {.name = "b", .shape = {2, 5}, .unit = 1, .stacked = true}};
}
std::vector<zero::Tensor> layered() {
  return {{.name = "wte", .shape = {700}},
          {.name = "w[0]", .shape = {30, 50}, .unit = 1},
          {.name = "w[1]", .shape = {30, 50}, .unit = 2},
          {.name = "mask[0]", .shape = {7}, .unit = 1, .frozen = true},
          {.name = "mask[1]", .shape = {7}, .unit = 2, .frozen = true},
          {.name = "b[0]", .shape = {5}, .unit = 1},
          {.name = "b[1]", .shape = {5}, .unit = 2}};
}

void load(auto& optimizer, float by) {
  optimizer.load_parameters([&](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = by * static_cast<float>(first + i);
  });
}

/// Every rank brings the same gradients, whose mean is exact; the last layer rests at first.
void train(auto& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (int const unit : optimizer.units_backward()) {
      if (unit == 2 && step < 2) {
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
    optimizer.step();
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

TEST_CASE(
    "a stacked model goes on from its checkpoint to the same bits, stacked or layer by layer") {
  checkpoint_tests::TemporaryDirectory const directory;
  std::vector<std::uint32_t> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, stacked(), zero::stage::PosG{}};
    load(optimizer, 0.01f);
    train(optimizer, 0, saved_at);
    zero::Checkpoints run{directory.path()};
    run.save(optimizer);
    train(optimizer, saved_at, saved_at + 3);
    auto const bits = bits_of(optimizer);
    if (comm.rank() == 0) expected = bits;
  });
  CHECK(expected.size() == 700 + 2 * 1500 + 2 * 7 + 2 * 5);
  auto const goes_on = [&](auto& optimizer) {
    load(optimizer, 1.f);
    zero::Checkpoints run{directory.path()};
    run.load(optimizer, run.latest(optimizer).value());
    CHECK(optimizer.counters().steps == std::vector<long>{3, 3, 1, 3, 3, 3, 1});
    train(optimizer, saved_at, saved_at + 3);
    CHECK(bits_of(optimizer) == expected);
  };
  for (int const ranks : {1, 2, 3}) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer stack{comm, stacked(), zero::stage::PosGP{}};
      goes_on(stack);
      zero::ShardedOptimizer layers{comm, layered(), zero::stage::Replicated{}};
      goes_on(layers);
    });
  }
}

TEST_CASE("a model file has a stacked tensor layer by layer, and gives it back") {
  checkpoint_tests::TemporaryDirectory const directory;
  std::string const file = directory.path() + "/model.safetensors";
  std::vector<std::uint32_t> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, stacked(), zero::stage::PosG{}};
    load(optimizer, 0.01f);
    zero::export_model(optimizer, file);
    auto const bits = bits_of(optimizer);
    if (comm.rank() == 0) expected = bits;
  });
  auto const takes = [&](auto& optimizer) {
    auto const report = zero::load_parameters_from(optimizer, file);
    CHECK(report.missing.empty());
    CHECK(bits_of(optimizer) == expected);
  };
  for (int const ranks : {1, 2, 3}) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer stack{comm, stacked(), zero::stage::PosGP{}};
      takes(stack);
      zero::ShardedOptimizer layers{comm, layered(), zero::stage::Pos{}};
      takes(layers);
    });
  }
}

}  // namespace
}  // namespace stacked_test
