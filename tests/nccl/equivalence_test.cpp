/// Training over NCCL's ordered sums is training over the in-process communicator, bit for bit; and
/// it sends what the plan says.
#include "contracts/loop.hpp"
#include "nccl/world.hpp"
#include "zero/comm/counting.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

namespace equivalence_test {
namespace {

using zero::nccl::Options;
using zero::nccl::Registration;
using zero::nccl::Waiting;

/// What the ranks of one run have in the end.
using Bits = std::vector<std::vector<std::byte>>;

/// What is trained.
template <class S, class P, class R = zero::AdamW, class A = zero::AccumulateNone>
struct Setup {
  using Stage = S;
  using Precision = P;
  using Rule = R;
  using Accumulation = A;
  static constexpr int micro_steps = std::is_same_v<A, zero::AccumulateNone> ? 1 : 3;
};

template <class S, class C, class Memory>
void train(C& comm, Memory memory, Bits& bits, std::mutex& mutex, std::string& complaints) {
  zero::Counting<C> counted{comm};
  zero::ShardedOptimizer optimizer{counted,
                                   toy::model(),
                                   typename S::Stage{},
                                   typename S::Precision{},
                                   typename S::Rule{},
                                   typename S::Accumulation{},
                                   std::move(memory),
                                   zero::Bucket{12345}};
  contracts::load(optimizer);
  toy::Run const run{.ranks = comm.size(), .micro_steps = S::micro_steps};
  std::string wrong;
  for (long step = 0; step < 4; ++step) {
    counted.reset();
    for (int micro = 0; micro < run.micro_steps; ++micro) {
      if (run.micro_steps > 1) optimizer.micro_step({.last = micro + 1 == run.micro_steps});
      contracts::pass(optimizer, run, step, comm.rank() * run.micro_steps + micro);
    }
    static_cast<void>(optimizer.step({.max_norm = 5., .non_finite = zero::NonFinite::skip}));
    auto const planned = optimizer.plan(S::micro_steps);
    // The first step gathers what later ones find in place.
    if (step > 0 && counted.counts().bucket_total().bytes != planned.sent.total()) {
      wrong = "sent something else than planned; ";
    }
    if (optimizer.held() != planned.memory) wrong = "holds something else than planned; ";
  }
  auto mine = contracts::snapshot(optimizer);
  std::lock_guard const lock(mutex);
  complaints += wrong;
  bits[static_cast<std::size_t>(comm.rank())] = std::move(mine);
}

template <class S>
void compare(int ranks, bool separate) {
  INFO("stage " << std::string(S::Stage::name) << ", precision " << std::string(S::Precision::name)
                << ", rule " << std::string(S::Rule::name) << ", accumulation "
                << std::string(S::Accumulation::name) << ", ranks " << ranks << ", separate "
                << separate);
  Bits expected(static_cast<std::size_t>(ranks));
  Bits got(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::string complaints;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    train<S>(comm, zero::Owned<>{}, expected, mutex, complaints);
  });
  fake::World world(ranks, 11);
  Options options = fake::quick_options();
  options.separate_gathers = separate;
  // Small enough that buckets are summed in pieces, with a rest.
  options.staging_bytes = 8 << 10;
  options.registration = separate ? Registration::windows : Registration::none;
  fake::run_group<zero::nccl::Ordered>(world, ranks, options, [&](auto& comm) {
    train<S>(comm, zero::Owned{comm.allocator()}, got, mutex, complaints);
  });
  CHECK_MESSAGE(complaints.empty(), complaints);
  CHECK(expected[0].size() > 1000);
  CHECK((got == expected));
  fake::check_clean(world);
}

template <class Precision>
void every_stage(int ranks) {
  compare<Setup<zero::stage::Replicated, Precision>>(ranks, false);
  compare<Setup<zero::stage::Pos, Precision>>(ranks, true);
  compare<Setup<zero::stage::PosG, Precision>>(ranks, false);
  compare<Setup<zero::stage::PosGP, Precision>>(ranks, true);
}

TEST_CASE("Nccl, ordered: fp32 training under every stage equals the in-process ranks'") {
  for (int const ranks : {1, 2, 3}) every_stage<zero::Fp32>(ranks);
}
TEST_CASE("Nccl, ordered: bf16 training under every stage equals the in-process ranks'") {
  for (int const ranks : {2, 4}) every_stage<zero::Mixed<zero::bf16>>(ranks);
}

TEST_CASE("Nccl, ordered: other rules and micro-steps equal the in-process ranks'") {
  compare<Setup<zero::stage::PosG, zero::Fp32, zero::Adagrad, zero::AccumulateFull>>(3, false);
  using Bf16 = zero::Mixed<zero::bf16>;
  compare<Setup<zero::stage::PosGP, Bf16, zero::Lion, zero::AccumulateShard>>(2, true);
}

}  // namespace
}  // namespace equivalence_test
