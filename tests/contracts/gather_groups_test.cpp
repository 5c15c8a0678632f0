/// Units that are gathered together: who reads what when changes traffic at most, never a value.
#include "contracts/loop.hpp"
#include "contracts/recording.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace gather_groups_test {
namespace {

using zero::Op;

template <class... Policies>
using Gathered =
    contracts::WatchedOptimizer<zero::stage::PosGP, zero::Mixed<zero::bf16>, Policies...>;

/// On 4 ranks, of which the smallest bucket is 2048 elements: units {0, 1}, {2 .. 5} and {6, 7} are
/// gathered together, 4 being frozen.
std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  for (std::size_t const size : {600u, 600u, 7000u, 10u, 9u, 20u, 3000u, 500u}) {
    auto const unit = static_cast<int>(tensors.size());
    tensors.push_back(
        {.name = "w" + std::to_string(unit), .shape = {size}, .unit = unit, .frozen = unit == 4});
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
    Gathered<> optimizer{watched.comm, model(), zero::Prefetch{prefetch}};
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
    auto const read = [&](int unit) {
      CHECK(right(optimizer.parameters(unit), unit));
      return gathered(optimizer, comm);
    };
    for (int pass = 0; pass < 2; ++pass) {
      CHECK(read(0) == Firsts{0});
      CHECK(read(1) == Firsts{});
      CHECK(read(2) == Firsts{2});
      CHECK(read(3) == Firsts{});
      CHECK(read(4) == Firsts{});
      CHECK(read(5) == Firsts{});
      CHECK(read(6) == Firsts{6});
      CHECK(read(7) == Firsts{});
      // Its last reader is gone.
      CHECK(read(7) == Firsts{6});
      CHECK(read(6) == Firsts{});
      CHECK(read(5) == Firsts{2});
      CHECK(read(4) == Firsts{});
      CHECK(read(3) == Firsts{});
      CHECK(read(2) == Firsts{});
      CHECK(read(1) == Firsts{0});
      CHECK(read(0) == Firsts{});
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

TEST_CASE("units in any order, some of them held: the right values, and never a refusal") {
  for (int const prefetch : {0, 1, 2}) {
    run(prefetch, [&](auto& optimizer, auto& comm) {
      using View = decltype(optimizer.parameters(0));
      std::mt19937 random(static_cast<unsigned>(prefetch));
      std::list<std::pair<int, View>> held;
      std::size_t wrong = 0;
      for (int i = 0; i < 300; ++i) {
        // As many units as there are slots never need more gather groups than there are slots.
        int const unit = static_cast<int>(random() % 8);
        bool const lets_go = held.size() > static_cast<std::size_t>(prefetch) || random() % 3 == 0;
        if (lets_go && !held.empty()) {
          auto const which = static_cast<std::ptrdiff_t>(random() % held.size());
          held.erase(std::next(held.begin(), which));
        }
        held.emplace_back(unit, optimizer.parameters(unit));
        for (auto const& [number, view] : held) wrong += right(view, number) ? 0u : 1u;
      }
      held.clear();
      CHECK(wrong == 0);
      // Everything else is as before: a step leaves nothing under way.
      for (int const unit : optimizer.units_backward()) optimizer.reduce(optimizer.gradients(unit));
      optimizer.step();
      CHECK(comm.under_way() == 0);
    });
  }
}

TEST_CASE("a gather group whose gradients are not complete is named by the unit that is missing") {
  run(1, [](auto& optimizer, auto&) {
    // Their groups wait for unit 7, and for units 3 to 5.
    for (int const unit : {6, 2}) optimizer.reduce(optimizer.gradients(unit));
    std::string message;
    try {
      static_cast<void>(optimizer.gradients(1));
    } catch (zero::Error const& error) {
      message = error.message();
    }
    CHECK(message.starts_with(
        "unit 1 finds the gradient pool full of units that are yet to be reduced; unit 7 is "));
    for (int const unit : {7, 5, 4, 3, 1, 0}) optimizer.reduce(optimizer.gradients(unit));
    CHECK(optimizer.step().step == 1);
  });
}

/// Trains, some units giving no gradients, or overwriting them; the bits of all parameters.
template <class Stage, class Accumulation>
std::vector<std::byte> train(std::vector<zero::Tensor> const& tensors, int prefetch) {
  std::vector<std::byte> result;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<Stage, zero::Mixed<zero::bf16>, Accumulation> optimizer{
        watched.comm, tensors, zero::Bucket{4096}, zero::Prefetch{prefetch}};
    contracts::load(optimizer);
    constexpr bool several = Accumulation::reduced_shard;
    for (int step = 0; step < 3; ++step) {
      watched.counted.reset();
      for (int micro = 0; micro < (several ? 2 : 1); ++micro) {
        if (several) optimizer.micro_step({});
        for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit));
        for (int const unit : optimizer.units_backward()) {
          // Behind unit 1 nobody waits for gradients that never come.
          if (step == 1 && unit == 0) break;
          auto const weights = optimizer.parameters(unit);
          bool const overwrites = (step + unit) % 2 == 0;
          auto gradients =
              overwrites ? optimizer.gradients(unit, zero::overwrite) : optimizer.gradients(unit);
          contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
            for (std::size_t k = 0; k < gradients[i].size(); ++k) {
              float const g = toy::gradient(
                  static_cast<float>(weights[i][k]), t, k, step, inner.rank() * 2 + micro);
              float const before = overwrites ? 0.f : static_cast<float>(gradients[i][k]);
              gradients[i][k] = zero::bf16(before + g);
            }
          });
          optimizer.reduce(std::move(gradients));
        }
      }
      optimizer.step();
      auto const plan = optimizer.plan(several ? 2 : 1);
      CHECK(watched.counted.counts().bucket_total().elements == plan.traffic.total());
      CHECK(watched.counted.counts().bucket_total().bytes == plan.sent.total());
      CHECK(optimizer.held() == plan.memory);
    }
    std::vector<std::byte> bits;
    for (int const unit : optimizer.units()) {
      auto const weights = optimizer.parameters(unit);
      for (std::size_t i = 0; i < weights.size(); ++i) contracts::append(bits, weights[i]);
    }
    std::lock_guard const lock(mutex);
    if (inner.rank() == ranks - 1) result = std::move(bits);
  });
  return result;
}

template <class Accumulation>
void check_bits() {
  auto const expected = train<zero::stage::Pos, Accumulation>(model(), 0);
  for (int const prefetch : {0, 1, 2}) {
    CHECK(train<zero::stage::PosGP, Accumulation>(model(), prefetch) == expected);
  }
}

TEST_CASE("gathered together or not: the same bits, the traffic and the memory of the plan") {
  check_bits<zero::AccumulateNone>();
  check_bits<zero::AccumulateShard>();
}

}  // namespace
}  // namespace gather_groups_test
