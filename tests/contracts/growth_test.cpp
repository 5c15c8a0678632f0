// What a rank keeps and does does not grow with the number of ranks: tables are of tensors and
// buckets, of which many ranks have no more than few ones. And the work of a tensor does not grow
// with the number of tensors.
#include "contracts/heap.hpp"
#include "plan/model/step.hpp"
#include "plan/model/transformer.hpp"
#include "plan/model/world.hpp"
#include "plan/simulate/communicator.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace growth_test {
namespace {

/// Of one rank of many.
struct Cost {
  std::uint64_t tensors = 0;
  std::uint64_t buckets = 0;
  std::uint64_t plan = 0;     ///< bytes of the host at most, for a plan
  std::uint64_t built = 0;    ///< at most, while it is built
  std::uint64_t kept = 0;     ///< when it is built
  std::uint64_t in_step = 0;  ///< allocations of the second step
  std::uint64_t starts = 0;   ///< collectives of it
};

template <class Stage>
Cost cost_on(int ranks) {
  std::vector<zero::Tensor> const model =
      plan::describe({.layers = 128, .hidden = 25600, .heads = 160});
  plan::World world{plan::cluster_of("dgx-h100")};
  plan::simulate::Communicator comm{world, {.size = ranks, .per_node = 8}};
  zero::Counting counted{comm};
  using Optimizer = zero::ShardedOptimizer<decltype(counted),
                                           Stage,
                                           zero::Mixed<zero::bf16>,
                                           zero::Owned<plan::simulate::Allocator>>;
  Cost cost{.tensors = model.size()};
  auto const peak = [](auto const& work) {
    heap::reset_peak();
    std::int64_t const before = heap::mine().live_bytes;
    work();
    return static_cast<std::uint64_t>(heap::mine().peak_bytes - before);
  };
  cost.plan = peak([&] {
    auto const plan = Optimizer::plan({.world_size = ranks}, model);
    CHECK(plan.memory.total() > 0);
  });
  heap::reset_peak();
  std::int64_t const before = heap::mine().live_bytes;
  Optimizer optimizer(counted, model, world.memory());
  cost.built = static_cast<std::uint64_t>(heap::mine().peak_bytes - before);
  cost.kept = static_cast<std::uint64_t>(heap::mine().live_bytes - before);
  cost.buckets = optimizer.partition().bucket_count();
  optimizer.adopt_parameters();
  for (int step = 0; step < 2; ++step) {
    counted.reset();
    std::uint64_t const allocations = heap::mine().allocations;
    for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit));
    for (int const unit : optimizer.units_backward()) {
      auto const parameters = optimizer.parameters(unit);
      optimizer.reduce(optimizer.gradients(unit));
    }
    optimizer.step({.max_norm = 1.});
    cost.in_step = heap::mine().allocations - allocations;
    auto const counts = counted.counts();
    cost.starts = counts.bucket_total().calls + counts.control_total().calls;
  }
  return cost;
}

TEST_CASE_TEMPLATE("a rank's tables and collectives do not grow with the number of ranks",
                   Stage,
                   zero::stage::Replicated,
                   zero::stage::Pos,
                   zero::stage::PosG,
                   zero::stage::PosGP) {
  CAPTURE(Stage::name);
  for (int const ranks : {100, 1'000, 10'000, 100'000, 1'000'000}) {
    CAPTURE(ranks);
    Cost const cost = cost_on<Stage>(ranks);
    // 25 MiB of two bytes an element, or 512 elements for each rank where that is more.
    auto const elements = std::uint64_t{1'001'000'000'000};
    CHECK(cost.buckets <=
          2 * elements / static_cast<std::uint64_t>((std::max)(13'107'200, 512 * ranks)));
    CHECK(cost.starts <= 3 * cost.buckets + 500);
    CHECK(cost.in_step == 0);
    CHECK(cost.plan <= 400 * cost.tensors);
    CHECK(cost.built <= 600 * cost.tensors + 24 * cost.buckets);
    CHECK(cost.kept <= cost.built);
  }
}

/// The fastest of some steps over tensors of eight elements, in seconds of the processor, which
/// other programs do not have meanwhile.
/// @param each  tensors of a unit
template <class Step>
double fastest(std::size_t tensors, std::size_t each, bool with_absent, Step const& step) {
  std::vector<zero::Tensor> model;
  for (std::size_t t = 0; t < tensors; ++t) {
    model.push_back(
        {.name = "block." + std::to_string(t / 10) + ".weight." + std::to_string(t % 10),
         .shape = {8},
         .unit = static_cast<int>(t / each)});
  }
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, model};
  optimizer.adopt_parameters();
  double seconds = 1e9;
  for (int run = 0; run < 5; ++run) {
    std::clock_t const begin = std::clock();
    for (int const unit : optimizer.units_backward()) {
      auto const parameters = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit);
      std::size_t const first = static_cast<std::size_t>(unit) * each;
      for (std::size_t t = first; t < (std::min)(first + each, tensors); ++t) {
        zero::Tensor const& tensor = optimizer.tensors()[t];
        if (with_absent && t % 4 == 0) {
          optimizer.without_gradient(tensor);
        } else {
          step(parameters[tensor.name], gradients[tensor.name]);
        }
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step();
    seconds = (std::min)(seconds, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  auto const all = optimizer.full_parameters();
  for (zero::Tensor const& tensor : model) CHECK(all[tensor.name].size() == 8);
  return seconds;
}

// They took 100 times as long when guards looked names up one by one; that other programs take the
// cache is left room for.
TEST_CASE("a unit of many tensors takes no longer than many units of few [full]") {
  auto const add = [](std::span<float const> values, std::span<float> slopes) {
    for (std::size_t i = 0; i < slopes.size(); ++i) slopes[i] += values[i] + 1.f;
  };
  for (bool const absent : {false, true}) {
    CAPTURE(absent);
    CHECK(fastest(10'000, 10'000, absent, add) < 5. * fastest(10'000, 10, absent, add));
    CHECK(fastest(20'000, 20'000, absent, add) < 6. * fastest(10'000, 10'000, absent, add));
  }
}

/// The same over tensors that are lent unit by unit, each below the one before in memory, with room
/// between them.
double fastest_lent(std::size_t tensors, std::size_t each) {
  std::vector<zero::Tensor> model;
  for (std::size_t t = 0; t < tensors; ++t) {
    model.push_back({.name = std::to_string(t), .shape = {8}, .unit = static_cast<int>(t / each)});
  }
  std::vector<float> values(12 * tensors, 1.f);
  std::vector<float> slopes(values);
  std::vector<std::span<float>> parameters(tensors);
  std::vector<std::span<float>> gradients(tensors);
  for (std::size_t t = 0; t < tensors; ++t) {
    parameters[t] = std::span(values).subspan(12 * (tensors - 1 - t), 8);
    gradients[t] = std::span(slopes).subspan(12 * (tensors - 1 - t), 8);
  }
  zero::Self comm;
  zero::ShardedOptimizer optimizer{comm, model, zero::Borrowed<>{}};
  optimizer.bind_parameters(parameters);
  optimizer.adopt_parameters();
  double seconds = 1e9;
  for (int run = 0; run < 3; ++run) {
    std::clock_t const begin = std::clock();
    for (int const unit : optimizer.units_backward()) {
      std::size_t const first = static_cast<std::size_t>(unit) * each;
      optimizer.bind_gradients(unit,
                               std::span<std::span<float> const>(gradients).subspan(first, each));
      optimizer.reduce(optimizer.gradients(unit));
    }
    optimizer.step();
    seconds = (std::min)(seconds, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  CHECK(std::count(values.begin(), values.end(), 1.f) == static_cast<int>(4 * tensors));
  return seconds;
}

// Eight times as many took 30 times as long when each moved what was lent before it.
TEST_CASE("what many tensors that are lent unit by unit take grows as they do [full]") {
  CHECK(fastest_lent(80'000, 80'000) < 20. * fastest_lent(10'000, 10'000));
  CHECK(fastest_lent(80'000, 1) < 20. * fastest_lent(10'000, 1));
}

}  // namespace
}  // namespace growth_test
