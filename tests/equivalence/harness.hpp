/// @file
/// The equivalence suite, written once for all communicators and all memory: trains the toy model
/// on every rank of a world and compares with the reference, bit for bit.
#pragma once

#include "rank.hpp"
#include "reference.hpp"
#include "support/comparison.hpp"
#include "support/toy_model.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace toy {

/// Policies under test.
template <class StageT,
          class PrecisionT,
          class RuleT = zero::AdamW,
          class AccumulationT = zero::AccumulateNone,
          class MemoryT = zero::Owned<>>
struct Setup {
  using Stage = StageT;
  using Precision = PrecisionT;
  using Rule = RuleT;
  using Accumulation = AccumulationT;
  using Memory = MemoryT;
  Rule rule{};
  Precision precision{};
  bool flat = false;  ///< borrowed only: one flat buffer instead of separate tensors
};

template <class S>
Outcome<typename S::Precision, typename S::Rule> reference(S const& setup, Run const& run) {
  return Reference<typename S::Precision, typename S::Rule, typename S::Accumulation>(
             run, setup.rule, setup.precision)
      .train();
}

/// Number of elements whose bits differ, over all arrays.
template <class Result>
std::size_t differing_bits(Result const& a, Result const& b) {
  std::size_t different = 0;
  auto const compare = [&](auto const& x, auto const& y) {
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::memcmp(&x[i], &y[i], sizeof(x[i])) != 0) ++different;
    }
  };
  for (std::size_t t = 0; t < a.master.size(); ++t) {
    compare(a.master[t], b.master[t]);
    for (std::size_t k = 0; k < a.states.size(); ++k) compare(a.states[k][t], b.states[k][t]);
  }
  return different;
}

/// Calls `world.trained(comm)` where a world has such a function.
// Not in the lambda that calls it, where nvcc takes the branch for every world.
template <class World, class C>
void look_at_trained(World const& world, C const& comm) {
  if constexpr (requires { world.trained(comm); }) world.trained(comm);
}

/// Trains both ways and checks that nothing differs in a single bit; returns the reference.
///
/// @param world  `world.run(ranks, body)` calls `body(comm, allocator)` on those ranks of a new
///   group that this process hosts. `world.trained(comm)`, where it exists, looks at what training
///   has left in a communicator.
template <class World, class S>
Outcome<typename S::Precision, typename S::Rule> check(World const& world,
                                                       S const& setup,
                                                       Run const& run) {
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", rule " << std::string(S::Rule::name) << ", accumulation "
                << std::string(S::Accumulation::name) << ", borrowed " << S::Memory::borrowed
                << ", flat " << setup.flat << ", ranks " << run.ranks << ", bucket "
                << run.bucket_bytes << ", micro-steps " << run.micro_steps << ", weighted "
                << run.weighted << ", max norm " << run.max_norm);
  auto const expected = reference(setup, run);
  std::mutex mutex;
  std::string complaints;
  bool trained = false;
  world.run(run.ranks, [&](auto& comm, auto const& allocator) {
    Findings found = train_rank(setup, run, expected, comm, allocator);
    look_at_trained(world, comm);
    std::int64_t const owners = S::Stage::sharding.optimizer ? 1 : comm.size();
    found.require(covered(comm, allocator, found.owners, owners), "how many own an element");
    std::lock_guard const lock(mutex);
    trained = true;
    if (found.complaints.empty()) return;
    complaints += "rank " + std::to_string(comm.rank()) + ": " + found.complaints;
  });
  CHECK(trained);
  CHECK_MESSAGE(complaints.empty(), complaints);
  return expected;
}

/// Threads as ranks, over host memory.
struct Threads {
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::InProcess& comm) { body(comm, zero::HostAllocator{}); });
  }
};

/// The check on threads.
template <class S>
Outcome<typename S::Precision, typename S::Rule> check_equal(S const& setup, Run const& run) {
  return check(Threads{}, setup, run);
}

/// With clipping and an overflow in the last rank's last micro-batch of one step; with several
/// micro-batches, which count by weights, where they are added up.
template <class S, class World>
void check_clipped(World const& world, int ranks, long steps = 4) {
  S setup{};
  // Either way to lend, in turn.
  setup.flat = S::Stage::sharding.optimizer;
  // The toy model's gradients would overflow for steps on end from the default on.
  if constexpr (S::Precision::loss_scaled) setup.precision.loss_scale.initial = 64.f;
  constexpr int micro_steps =
      std::is_same_v<typename S::Accumulation, zero::AccumulateNone> ? 1 : 3;
  auto const expected = check(world,
                              setup,
                              {.ranks = ranks,
                               .micro_steps = micro_steps,
                               .steps = steps,
                               .bucket_bytes = 12345,
                               .max_norm = 5.,
                               .weighted = micro_steps > 1,
                               .fault = {.step = 2, .micro_batch = micro_steps * ranks - 1}});
  std::vector<bool> skipped(static_cast<std::size_t>(steps), false);
  skipped[2] = true;
  CHECK(expected.skipped == skipped);
}

/// A stage and a precision over a few group sizes.
template <class World, class Stage, class Precision>
void check_ranks(std::initializer_list<int> ranks) {
  for (int const n : ranks) check_clipped<Setup<Stage, Precision>>(World{}, n);
}

/// Every accumulation and memory, other rules than AdamW, stages and precisions in turn.
template <class World>
void check_policies(int ranks) {
  using zero::AccumulateNone;
  using Bf16 = zero::Mixed<zero::bf16>;
  using Fp16 = zero::Mixed<zero::fp16>;
  using Lent = zero::Borrowed<>;
  namespace stage = zero::stage;
  World const world{};
  check_clipped<Setup<stage::PosGP, Fp16, zero::Adagrad, zero::AccumulateShard>>(world, ranks);
  check_clipped<Setup<stage::PosG, Bf16, zero::Sgd, zero::AccumulateFull>>(world, ranks);
  check_clipped<Setup<stage::Replicated, Fp16, zero::AdamW, AccumulateNone, Lent>>(world, ranks);
  check_clipped<Setup<stage::Pos, zero::Fp32, zero::Lion, AccumulateNone, Lent>>(world, ranks);
  check_clipped<Setup<stage::PosG, Bf16, zero::Sgd, AccumulateNone, Lent>>(world, ranks);
}

}  // namespace toy
