#include "contracts/loop.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/toy_model.hpp"
#include "trapped_space.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

// A run that is saved and resumed by hand: what visit_owned and counters() show, fill_owned and
// restore() take back.
namespace resume_test {
namespace {

/// Master weights and states of whole tensors, put together from all ranks.
struct Saved {
  zero::Counters counters{};
  std::map<std::string, std::vector<std::vector<float>>> tensors{};  ///< master, then states
  std::map<std::string, std::vector<std::byte>> parameters{};        ///< as rank 0 reads them
  friend bool operator==(Saved const&, Saved const&) = default;
};

template <class Optimizer>
void save(Optimizer& optimizer, Saved& saved, std::mutex& mutex, int rank) {
  zero::Counters const counters = optimizer.counters();
  {
    std::lock_guard const lock(mutex);
    if (rank == 0) saved.counters = counters;
    optimizer.visit_owned(
        [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
          auto& arrays = saved.tensors[tensor.name];
          arrays.resize(1 + states.size());
          for (auto& array : arrays) array.resize(zero::element_count(tensor));
          for (std::size_t i = 0; i < masters.size(); ++i) {
            arrays[0][first + i] = masters[i];
            for (std::size_t k = 0; k < states.size(); ++k) arrays[1 + k][first + i] = states[k][i];
          }
        });
  }
  for (int const unit : optimizer.units()) {
    auto const weights = optimizer.parameters(unit);
    std::size_t i = 0;
    for (auto const& tensor : optimizer.tensors()) {
      if (tensor.unit != unit) continue;
      auto const values = weights[i++];
      if (rank != 0 || tensor.frozen || !optimizer.on_host) continue;
      std::lock_guard const lock(mutex);
      auto const bytes = std::as_bytes(values);
      saved.parameters[tensor.name].assign(bytes.begin(), bytes.end());
    }
  }
  optimizer.settle();
}

template <class Optimizer>
void resume(Optimizer& optimizer, Saved const& saved) {
  optimizer.fill_owned(
      [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
        auto const& arrays = saved.tensors.at(tensor.name);
        for (std::size_t i = 0; i < masters.size(); ++i) {
          masters[i] = arrays[0][first + i];
          for (std::size_t k = 0; k < states.size(); ++k) states[k][i] = arrays[1 + k][first + i];
        }
      });
  optimizer.restore(saved.counters);
}

template <class StageT, class PrecisionT, class RuleT = zero::AdamW>
struct Setup {
  /// The default rule is not named, as in other tests.
  template <class C, class... Memory>
  using Optimizer =
      std::conditional_t<std::is_same_v<RuleT, zero::AdamW>,
                         zero::ShardedOptimizer<C, StageT, PrecisionT, Memory...>,
                         zero::ShardedOptimizer<C, StageT, PrecisionT, RuleT, Memory...>>;
  using Stage = StageT;
  using Precision = PrecisionT;
  Precision precision{};
  RuleT rule{};
};

/// Steps [first, last) on so many ranks, in the space and memory that `attach` gives an optimizer.
template <class Optimizer, class Space>
void train(Optimizer& optimizer, Space const& space, toy::Run const& run, long first, int rank) {
  for (long step = first; step < first + run.steps; ++step) {
    for (std::size_t u = optimizer.units().size(); u-- > 0;) {
      auto const unit = static_cast<int>(u);
      auto const weights = optimizer.parameters(unit);
      auto gradients = optimizer.gradients(unit);
      std::size_t i = 0;
      for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
        if (optimizer.tensors()[t].unit != unit) continue;
        auto const w = weights[i];
        auto const g = gradients[i++];
        space.call([run, t, step, rank, w, g, scale = optimizer.loss_scale_address()] {
          toy::backward(run, t, step, rank, *scale, w, g);
        });
      }
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step({.max_norm = run.max_norm, .non_finite = zero::NonFinite::skip});
  }
}

enum class Where : int { host, lent, device };

/// Trains steps [first, first + run.steps), from the saved run if there is one.
template <Where where, class S>
Saved run_steps(S const& setup, toy::Run const& run, long first, Saved const* from) {
  Saved saved;
  std::mutex mutex;
  zero::run_ranks(run.ranks, [&](zero::InProcess& inner) {
    auto const go = [&](auto& optimizer, auto const& space, auto&& bind) {
      bind();
      if (from != nullptr) {
        // Frozen tensors are no part of what a rank owns.
        toy::load(optimizer);
        resume(optimizer, *from);
      } else {
        toy::load(optimizer);
      }
      if (run.steps > 0) train(optimizer, space, run, first, inner.rank());
      save(optimizer, saved, mutex, inner.rank());
    };
    zero::Bucket const bucket{run.bucket_bytes};
    if constexpr (where == Where::device) {
      using Owned = zero::Owned<trapped::Allocator>;
      trapped::Device device;
      trapped::Communicator comm(inner, device, trapped::Collectives::late);
      typename S::template Optimizer<trapped::Communicator, Owned> optimizer{
          comm, toy::model(run.tied), setup.precision, setup.rule, Owned{{&device}}, bucket};
      go(optimizer, comm.space(), [] {});
      device.synchronize();
    } else if constexpr (where == Where::host) {
      typename S::template Optimizer<zero::InProcess> optimizer{
          inner, toy::model(run.tied), setup.precision, setup.rule, bucket};
      go(optimizer, zero::space::Host{}, [] {});
    } else {
      using Lent = toy::LentMemory<typename S::Precision::Parameter,
                                   typename S::Precision::Wire,
                                   zero::space::Host,
                                   zero::HostAllocator>;
      typename S::template Optimizer<zero::InProcess, zero::Borrowed<>> optimizer{
          inner, toy::model(run.tied), setup.precision, setup.rule, bucket};
      Lent lent({}, {}, optimizer.tensors(), false);
      // Lent gradients are the trainer's to clear: none are given, only parameters are looked at.
      go(optimizer, zero::space::Host{}, [&] { lent.bind_to(optimizer); });
      CHECK(lent.intact());
    }
  });
  return saved;
}

template <Where where = Where::host, class From, class To>
void check(From const& before, To const& after, toy::Run run, int other_ranks) {
  INFO("from " << std::string(From::Stage::name) << " to " << std::string(To::Stage::name)
               << ", precision " << std::string(From::Precision::name) << ", ranks " << run.ranks
               << " to " << other_ranks << ", where " << static_cast<int>(where));
  run.steps = 40;
  Saved const whole = run_steps<where>(before, run, 0, nullptr);
  run.steps = 20;
  Saved const half = run_steps<where>(before, run, 0, nullptr);
  REQUIRE(half.counters.steps.size() == toy::model(run.tied).size());
  CHECK(half.counters.steps.front() > 15);
  Saved const resumed = run_steps<where>(after, run, 20, &half);
  CHECK(resumed.counters == whole.counters);
  CHECK(resumed.tensors == whole.tensors);
  if (where == Where::host) CHECK(resumed.parameters == whole.parameters);

  toy::Run other = run;
  other.ranks = other_ranks;
  other.bucket_bytes = 4096;
  other.steps = 0;
  Saved const restored = run_steps<where>(after, other, 20, &half);
  CHECK(restored.counters == half.counters);
  CHECK(restored.tensors == half.tensors);
  if (where == Where::host) CHECK(restored.parameters == half.parameters);
  if constexpr (!To::Stage::sharding.parameters) {
    Saved const lent = run_steps<Where::lent>(after, other, 20, &half);
    CHECK(lent.counters == half.counters);
    CHECK(lent.tensors == half.tensors);
    if (where == Where::host) CHECK(lent.parameters == half.parameters);
  }
}

using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;

}  // namespace

TEST_CASE("20 steps, a resume under any stage and 20 more are 40, in bits") {
  toy::Run const run{.ranks = 3, .max_norm = 8.};
  zero::AdamW const rule{.lr = 0.01f, .weight_decay = 0.1f};
  using Fp32 = zero::Fp32;
  check(Setup<Replicated, Fp32>{{}, rule}, Setup<PosGP, Fp32>{{}, rule}, run, 2);
  check(Setup<PosGP, Fp32>{{}, rule}, Setup<Pos, Fp32>{{}, rule}, run, 5);
  using Bf16 = zero::Mixed<zero::bf16>;
  check(Setup<Pos, Bf16>{{}, rule}, Setup<Replicated, Bf16>{{}, rule}, run, 4);
  check(Setup<PosG, Bf16, zero::Lion>{}, Setup<PosGP, Bf16, zero::Lion>{}, run, 1);
}

TEST_CASE("a dynamic loss scale goes on where it was") {
  toy::Run const run{.ranks = 2, .fault = {.step = 13}};
  using Fp16 = zero::Mixed<zero::fp16>;
  Fp16 const precision{.loss_scale = {.initial = 64.f, .growth_interval = 9}};
  zero::Sgd const rule{.lr = 0.01f};
  check(Setup<PosG, Fp16, zero::Sgd>{precision, rule},
        Setup<Pos, Fp16, zero::Sgd>{precision, rule},
        run,
        3);
}

TEST_CASE("a resume goes through a device's own functions where the host cannot reach it") {
  toy::Run const run{.ranks = 2};
  using Bf16 = zero::Mixed<zero::bf16>;
  check<Where::device>(Setup<Replicated, Bf16>{}, Setup<PosGP, Bf16>{}, run, 3);
  check<Where::device>(Setup<PosG, zero::Fp32>{}, Setup<PosG, zero::Fp32>{}, run, 1);
}

TEST_CASE("counters that make no sense are refused, and so are those that differ between ranks") {
  auto alone = zero::InProcess::group(1);
  contracts::Optimizer<PosG, zero::Fp32> optimizer{alone[0], toy::model(false)};
  std::size_t const count = optimizer.tensors().size();
  auto const refused = [&](zero::Counters const& counters) {
    return refusal([&] { optimizer.restore(counters); });
  };
  CHECK(refused({.steps = {1, 2}}) ==
        "restore(): 10 tensors are described but the steps of 2 are given");
  CHECK(refused({.steps = std::vector<long>(count, -1)}) ==
        "restore(): tensor 'wte' has -1 steps, but must have at least 0 and at most the 0 of the "
        "run");
  zero::Counters uneven{.steps = std::vector<long>(count, 4)};
  uneven.steps[1] = 5;
  uneven.step = 4;
  CHECK(
      refused(uneven) ==
      "restore(): tensor 'wpe' has 5 steps, but must have at least 0 and at most the 4 of the run");
  CHECK(refused({.steps = std::vector<long>(count, 4), .loss_scale = 2.f}) ==
        "restore(): there is a loss scale, but this precision has none");
  CHECK(refused({.steps = std::vector<long>(count, 4)}) == "");
  CHECK(optimizer.steps() == 4);
  CHECK(optimizer.steps(1) == 4);
  CHECK(optimizer.rule(1) == optimizer.rule());
  CHECK(refusal([&] { static_cast<void>(optimizer.steps(count)); }) ==
        "there is no tensor 10; 10 are described");
  static_cast<void>(optimizer.gradients(0));
  CHECK(refused({.steps = std::vector<long>(count, 4)}) ==
        "restore() in the middle of a step; call step() or discard_gradients() first");

  using Fp16 = zero::Mixed<zero::fp16>;
  contracts::Optimizer<PosG, Fp16> scaled{
      alone[0], toy::model(false), Fp16{.loss_scale = {.initial = 8.f}}};
  for (float const scale : {0.f, -1.f, 0x1p-127f, std::numeric_limits<float>::infinity()}) {
    CHECK(refusal([&] {
            scaled.restore({.steps = std::vector<long>(count, 4), .loss_scale = scale});
          }) == "restore(): the loss scale must be finite and at least 2^-126");
  }
  // One more of either would not be counted.
  using Streak = std::numeric_limits<int>;
  for (int const streak : {(Streak::max)(), (Streak::min)()}) {
    CHECK(refusal([&] {
            scaled.restore({.steps = std::vector<long>(count, 4), .loss_scale_streak = streak});
          }) == "restore(): no step can go on from a streak of " + std::to_string(streak));
  }
  CHECK(refusal([&] {
          scaled.restore({.steps = std::vector<long>(count, 4), .step = zero::most_steps + 1});
        }) == "restore(): " + std::to_string(zero::most_steps + 1) +
                  " steps are more than a run can have");

  std::vector<std::string> said(3);
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    contracts::Optimizer<PosG, zero::Fp32> each{comm, toy::model(false)};
    said[static_cast<std::size_t>(comm.rank())] = refusal(
        [&] { each.restore({.steps = std::vector<long>(count, comm.rank() == 1 ? 7 : 4)}); });
  });
  CHECK(said == std::vector<std::string>{"ranks restore different counters; here 4 steps",
                                         "ranks restore different counters; here 7 steps",
                                         "ranks restore different counters; here 4 steps"});
}

}  // namespace resume_test
