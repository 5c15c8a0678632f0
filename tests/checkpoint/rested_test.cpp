// Tensors that have rested go on from their own counts of updates.
#include "checkpoint/temporary_directory.hpp"
#include "zero/checkpoint.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rested_test {
namespace {

constexpr int units = 3;
constexpr int saved_at = 4;

std::vector<zero::Tensor> model() {
  return {{.name = "a", .shape = {700}, .unit = 0},
          {.name = "b", .shape = {3, 5}, .unit = 1},
          {.name = "c", .shape = {1}, .unit = 2}};
}

/// Unit 1 rests in every other step, unit 2 in the first three; unit 0 never does.
bool rests(int unit, int step) { return (unit == 1 && step % 2 == 0) || (unit == 2 && step < 3); }

void load(auto& optimizer) {
  optimizer.load_parameters([](zero::Tensor const&, std::size_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>((first + i) % 7);
  });
}

void train(auto& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    for (int const unit : optimizer.units_backward()) {
      if (rests(unit, step)) {
        optimizer.without_gradient(unit);
        continue;
      }
      auto gradients = optimizer.gradients(unit);
      for (std::size_t i = 0; i < gradients[0].size(); ++i) {
        gradients[0][i] += static_cast<float>(static_cast<int>(i % 5) - 2 + step);
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step();
  }
}

std::vector<std::uint32_t> bits_of(auto& optimizer) {
  std::vector<std::uint32_t> bits;
  auto const all = optimizer.full_parameters();
  for (std::size_t t = 0; t < units; ++t) {
    for (float const value : all[t]) bits.push_back(std::bit_cast<std::uint32_t>(value));
  }
  return bits;
}

TEST_CASE("tensors that have rested go on from their own counts, on other ranks and stages") {
  checkpoint_tests::TemporaryDirectory const directory;
  std::vector<std::uint32_t> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosG{}};
    load(optimizer);
    train(optimizer, 0, saved_at);
    zero::Checkpoints run{directory.path()};
    run.save(optimizer);
    train(optimizer, saved_at, saved_at + 3);
    auto const bits = bits_of(optimizer);
    if (comm.rank() == 0) expected = bits;
  });
  for (int const ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      zero::ShardedOptimizer optimizer{comm, model(), zero::stage::PosGP{}};
      load(optimizer);
      zero::Checkpoints run{directory.path()};
      run.load(optimizer, run.latest(optimizer).value());
      CHECK(optimizer.steps() == saved_at);
      CHECK(optimizer.counters().steps == std::vector<long>{4, 2, 1});
      // Every rank brings the same gradients, which are small whole numbers: their mean is exact.
      train(optimizer, saved_at, saved_at + 3);
      CHECK(optimizer.counters().steps == std::vector<long>{7, 3, 4});
      CHECK(bits_of(optimizer) == expected);
    });
  }
}

}  // namespace
}  // namespace rested_test
