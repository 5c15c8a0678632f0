#include "contracts/ranks.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

// A run that is saved and resumed by hand: what visit_owned and counters() show, fill_owned and
// restore() take back.
namespace resume_test {
namespace {

using contracts::OnDevice;
using contracts::OnHost;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;

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

/// A rank's optimizer over memory that is lent.
template <class Stage, class Precision>
struct OnLent {
  OnLent(zero::InProcess& comm,
         std::vector<zero::Tensor> const& tensors,
         Precision precision,
         zero::Bucket bucket)
      : lent({}, {}, tensors, false), optimizer{comm, tensors, precision, bucket} {
    lent.bind_to(optimizer);
    toy::load(optimizer);
  }
  ~OnLent() { CHECK(lent.intact()); }
  [[nodiscard]] zero::space::Host space() const noexcept { return {}; }
  toy::LentMemory<typename Precision::Parameter,
                  typename Precision::Wire,
                  zero::space::Host,
                  zero::HostAllocator>
      lent;
  contracts::Optimizer<Stage, Precision, zero::Borrowed<>> optimizer;
};

/// What is the same in a run that goes on.
template <class Precision>
struct Run {
  Precision precision{};
  toy::Fault fault{};
};

/// Steps [first, first + steps) from the saved run, if there is one.
template <class Trainer, class Precision>
Saved train(Run<Precision> const& run,
            int ranks,
            long first,
            long steps,
            Saved const* from,
            zero::Bucket bucket = {1}) {
  Saved saved;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](zero::InProcess& inner) {
    Trainer trainer(inner, toy::model(), run.precision, bucket);
    auto& optimizer = trainer.optimizer;
    if (from != nullptr) resume(optimizer, *from);
    for (long step = first; step < first + steps; ++step) {
      for (int const unit : optimizer.units_backward()) {
        auto const weights = optimizer.parameters(unit);
        auto gradients = optimizer.gradients(unit);
        contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
          trainer.space().call([=,
                                fault = run.fault,
                                rank = inner.rank(),
                                w = weights[i],
                                g = gradients[i],
                                scale = optimizer.loss_scale_address()] {
            toy::backward({.fault = fault}, t, step, rank, *scale, w, g);
          });
        });
        optimizer.reduce(std::move(gradients));
      }
      optimizer.step({.max_norm = 8., .non_finite = zero::NonFinite::skip});
    }
    save(optimizer, saved, mutex, inner.rank());
    // Others wait for what is in this rank's queue.
    if constexpr (!decltype(trainer.optimizer)::on_host) trainer.device.synchronize();
  });
  return saved;
}

/// A run of 40 steps, one that changes after 20, and what another group has then.
template <class Before, class After, class Precision>
void check(Run<Precision> const& run, int ranks, int other_ranks) {
  INFO("ranks " << ranks << " to " << other_ranks);
  Saved const whole = train<Before>(run, ranks, 0, 40, nullptr);
  Saved const half = train<Before>(run, ranks, 0, 20, nullptr);
  REQUIRE(half.counters.steps.size() == toy::model().size());
  CHECK(half.counters.steps.front() > 15);
  CHECK(train<After>(run, ranks, 20, 20, &half) == whole);
  zero::Bucket const bucket{4096};
  CHECK(train<After>(run, other_ranks, 20, 0, &half, bucket) == half);
}

}  // namespace

TEST_CASE("20 steps, a resume under any stage and 20 more are 40, in bits") {
  using zero::Fp32;
  check<OnHost<Replicated, Fp32>, OnHost<PosGP, Fp32>>(Run<Fp32>{}, 3, 2);
  check<OnHost<PosGP, Fp32>, OnHost<Pos, Fp32>>(Run<Fp32>{}, 3, 5);
  using Bf16 = zero::Mixed<zero::bf16>;
  check<OnHost<Pos, Bf16>, OnHost<Replicated, Bf16>>(Run<Bf16>{}, 3, 4);
  check<OnHost<PosG, Bf16>, OnHost<PosGP, Bf16>>(Run<Bf16>{}, 3, 1);
  // A dynamic loss scale goes on where it was.
  using Fp16 = zero::Mixed<zero::fp16>;
  Run<Fp16> const scaled{.precision = {.loss_scale = {.initial = 64.f, .growth_interval = 9}},
                         .fault = {.step = 13}};
  check<OnHost<PosGP, Fp16>, OnHost<PosG, Fp16>>(scaled, 2, 3);
}

TEST_CASE("lent memory and a device's are resumed into as well, where the host cannot reach it") {
  using Bf16 = zero::Mixed<zero::bf16>;
  Saved const half = train<OnHost<PosG, Bf16>>(Run<Bf16>{}, 3, 0, 20, nullptr);
  CHECK(train<OnLent<Replicated, Bf16>>(Run<Bf16>{}, 2, 20, 0, &half) == half);
  CHECK(train<OnLent<PosG, Bf16>>(Run<Bf16>{}, 4, 20, 0, &half) == half);
  check<OnDevice<Replicated, Bf16>, OnDevice<PosGP, Bf16>>(Run<Bf16>{}, 2, 3);
  check<OnDevice<PosG, zero::Fp32>, OnDevice<PosG, zero::Fp32>>(Run<zero::Fp32>{}, 2, 1);
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
  CHECK(refusal([&] { return optimizer.steps(count); }) ==
        "there is no tensor 10; 10 are described");
  static_cast<void>(optimizer.gradients(0));
  CHECK(refused({.steps = std::vector<long>(count, 4)}) ==
        "restore() in the middle of a step; call step() or discard_gradients() first");

  using Fp16 = zero::Mixed<zero::fp16>;
  contracts::Optimizer<PosG, Fp16> scaled{
      alone[0], toy::model(false), Fp16{.loss_scale = {.initial = 8.f}}};
  auto const refused_with = [&](zero::Counters counters) {
    counters.steps.assign(count, 4);
    return refusal([&] { scaled.restore(counters); });
  };
  for (float const scale : {0.f, -1.f, 0x1p-127f, std::numeric_limits<float>::infinity()}) {
    CHECK(refused_with({.loss_scale = scale}) ==
          "restore(): the loss scale must be finite and at least 2^-126");
  }
  // One more of either would not be counted.
  using Streak = std::numeric_limits<int>;
  for (int const streak : {(Streak::max)(), (Streak::min)()}) {
    CHECK(refused_with({.loss_scale_streak = streak}) ==
          "restore(): no step can go on from a streak of " + std::to_string(streak));
  }
  CHECK(refused_with({.step = zero::most_steps + 1}) ==
        "restore(): " + std::to_string(zero::most_steps + 1) +
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
