/// The optimizer over processes against the optimizer over threads: the same bits, the same
/// traffic.
#include "equivalence/harness.hpp"
#include "mpi/world.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using mpi_tests::Route;

/// What one rank is left with.
struct Outcome {
  std::vector<std::byte> owned;  ///< master weights and states, in order
  std::vector<double> norms;
  std::vector<bool> skipped;
  float loss_scale = 0.f;
  zero::TrafficCounts traffic;
  bool as_planned = false;
};

template <class T>
void append(std::vector<std::byte>& bytes, std::span<T const> values) {
  auto const raw = std::as_bytes(values);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

/// What is trained.
template <class S,
          class P = zero::Mixed<zero::bf16>,
          class R = zero::AdamW,
          class A = zero::AccumulateNone,
          class M = zero::Owned<>>
struct Setup {
  using Stage = S;
  using Precision = P;
  using Rule = R;
  using Accumulation = A;
  using Memory = M;
  static constexpr int micro_steps = std::is_same_v<A, zero::AccumulateNone> ? 1 : 3;

  static P precision() {
    P result{};
    // The toy model's gradients would overflow for steps on end from the default on.
    if constexpr (P::loss_scaled) result.loss_scale.initial = 64.f;
    return result;
  }
};

/// Trains the toy model for a few steps on one rank of any communicator; in one of them a gradient
/// of the last rank is not finite.
template <class S, class C, class Allocator>
Outcome train(C& inner, Allocator const& allocator) {
  toy::Run const run{.ranks = inner.size(),
                     .micro_steps = S::micro_steps,
                     .steps = 5,
                     .bucket_bytes = 12345,
                     .max_norm = 5.,
                     .fault = {.step = 2, .micro_batch = inner.size() * S::micro_steps - 1}};
  using Memory =
      std::conditional_t<S::Memory::borrowed, zero::Borrowed<Allocator>, zero::Owned<Allocator>>;
  Outcome outcome;
  zero::Counting counted{inner};
  zero::ShardedOptimizer optimizer{counted,
                                   toy::model(),
                                   typename S::Stage{},
                                   S::precision(),
                                   typename S::Rule{},
                                   typename S::Accumulation{},
                                   Memory{allocator},
                                   zero::Bucket{run.bucket_bytes}};
  toy::LentMemory<typename S::Precision::Parameter, typename S::Precision::Wire> lent(
      optimizer.tensors(), true);
  if constexpr (S::Memory::borrowed) lent.bind_to(optimizer);
  optimizer.load_parameters(
      [&](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
        auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
        for (std::size_t i = 0; i < out.size(); ++i) out[i] = toy::initial_value(t, first + i);
      });
  auto const& tensors = optimizer.tensors();
  for (long step = 0; step < run.steps; ++step) {
    for (int micro = 0; micro < run.micro_steps; ++micro) {
      int const batch = inner.rank() * run.micro_steps + micro;
      if (run.micro_steps > 1) optimizer.micro_step({.last = micro + 1 == run.micro_steps});
      for (int const unit : optimizer.units_backward()) {
        auto const weights = optimizer.parameters(unit);
        auto gradients = optimizer.gradients(unit);
        std::size_t place = 0;
        for (std::size_t t = 0; t < tensors.size(); ++t) {
          if (tensors[t].unit != unit) continue;
          float const scale = optimizer.loss_scale();
          toy::backward(run, t, step, batch, scale, weights[place], gradients[place]);
          ++place;
        }
        optimizer.reduce(std::move(gradients));
      }
    }
    if constexpr (S::Memory::borrowed) {
      // What was reduced may be overwritten once the bucket has travelled.
      optimizer.reduce_all();
      lent.zero_gradients();
    }
    auto const report =
        optimizer.step({.max_norm = run.max_norm, .non_finite = zero::NonFinite::skip});
    outcome.norms.push_back(report.skipped ? 0. : report.grad_norm);
    outcome.skipped.push_back(report.skipped);
  }
  outcome.loss_scale = optimizer.loss_scale();
  optimizer.settle();
  optimizer.visit_owned(
      [&](zero::Tensor const&, std::size_t, auto const& master, auto const& states) {
        append(outcome.owned, master);
        for (auto const& state : states) append(outcome.owned, state);
      });
  outcome.traffic = counted.counts();
  outcome.as_planned = optimizer.held() == optimizer.plan().memory;
  return outcome;
}

template <class S>
void check(Route route) {
  int const size = mpi_tests::world_size();
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", " << std::string(mpi_tests::name(route)) << ", ranks " << size);
  std::vector<Outcome> expected(static_cast<std::size_t>(size));
  zero::run_ranks(size, [&](zero::InProcess& comm) {
    expected[static_cast<std::size_t>(comm.rank())] = train<S>(comm, zero::HostAllocator{});
  });
  Outcome got;
  mpi_tests::with_group<zero::mpi::Ordered>(size, route, [&](auto& comm) {
    got = train<S>(comm, comm.allocator());
    auto const transport = comm.transport();
    bool const near = route == Route::window || route == Route::thread;
    // Everything above 2 KiB lies in the window, so nothing needs a message.
    if (near) CHECK(transport.exchanged_bytes == 0);
    if (near && size > 1) CHECK(transport.direct_bytes > 0);
    if (route == Route::exchange && size > 1) CHECK(transport.exchanged_bytes > 0);
  });
  Outcome const& wanted = expected[static_cast<std::size_t>(mpi_tests::world_rank())];
  // A rank of many may own nothing of a small model; the first one never does.
  CHECK(!expected[0].owned.empty());
  CHECK(got.owned == wanted.owned);
  CHECK(got.norms == wanted.norms);
  CHECK(got.skipped == wanted.skipped);
  CHECK(got.skipped == std::vector<bool>{false, false, true, false, false});
  CHECK(got.loss_scale == wanted.loss_scale);
  CHECK(got.traffic == wanted.traffic);
  CHECK(got.as_planned);
}

TEST_CASE("ShardedOptimizer over Mpi: the bits and the traffic of InProcess under every stage") {
  for (Route const route : mpi_tests::routes) {
    check<Setup<zero::stage::Replicated>>(route);
    check<Setup<zero::stage::Pos>>(route);
    check<Setup<zero::stage::PosG>>(route);
    check<Setup<zero::stage::PosGP>>(route);
  }
}

TEST_CASE("ShardedOptimizer over Mpi: other precisions, rules, accumulations and memory") {
  using zero::stage::PosG;
  using zero::stage::PosGP;
  for (Route const route : {Route::window, Route::exchange}) {
    check<Setup<PosG, zero::Fp32, zero::Lion, zero::AccumulateShard>>(route);
    // Whether a step overflows, all ranks decide alike.
    check<Setup<PosGP, zero::Mixed<zero::fp16>, zero::Sgd, zero::AccumulateFull>>(route);
  }
  using Lent = zero::Borrowed<>;
  using Bf16 = zero::Mixed<zero::bf16>;
  check<Setup<PosG, Bf16, zero::Adagrad, zero::AccumulateNone, Lent>>(Route::exchange);
}

}  // namespace
