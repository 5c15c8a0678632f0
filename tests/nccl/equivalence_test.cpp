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
#include <vector>

namespace equivalence_test {
namespace {

using zero::nccl::Options;
using zero::nccl::Registration;
using zero::nccl::Waiting;

/// What the ranks of one run have in the end.
using Bits = std::vector<std::vector<std::byte>>;

template <class Stage, class Precision, class C, class Memory>
void train(C& comm, Memory memory, Bits& bits, std::mutex& mutex, std::string& complaints) {
  zero::Counting<C> counted{comm};
  zero::ShardedOptimizer optimizer{counted,
                                   toy::model(),
                                   Stage{},
                                   Precision{},
                                   zero::AdamW{},
                                   std::move(memory),
                                   zero::Bucket{12345}};
  contracts::load(optimizer);
  toy::Run const run{.ranks = comm.size()};
  std::string wrong;
  for (long step = 0; step < 4; ++step) {
    counted.reset();
    contracts::pass(optimizer, run, step, comm.rank());
    static_cast<void>(optimizer.step({.max_norm = 5., .non_finite = zero::NonFinite::skip}));
    auto const planned = optimizer.plan(1);
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

template <class Stage, class Precision>
void compare(int ranks, bool separate) {
  INFO("stage " << std::string(Stage::name) << ", precision " << std::string(Precision::name)
                << ", ranks " << ranks << ", separate " << separate);
  Bits expected(static_cast<std::size_t>(ranks));
  Bits got(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  std::string complaints;
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    train<Stage, Precision>(comm, zero::Owned<>{}, expected, mutex, complaints);
  });
  fake::World world(ranks, 11);
  Options options = fake::quick_options();
  options.separate_gathers = separate;
  // Small enough that buckets are summed in pieces, with a rest.
  options.staging_bytes = 8 << 10;
  options.registration = separate ? Registration::windows : Registration::none;
  fake::run_group<zero::nccl::Ordered>(world, ranks, options, [&](auto& comm) {
    train<Stage, Precision>(comm, zero::Owned{comm.allocator()}, got, mutex, complaints);
  });
  CHECK_MESSAGE(complaints.empty(), complaints);
  CHECK(expected[0].size() > 1000);
  CHECK((got == expected));
  fake::check_clean(world);
}

template <class Precision>
void every_stage(int ranks) {
  compare<zero::stage::Replicated, Precision>(ranks, false);
  compare<zero::stage::Pos, Precision>(ranks, true);
  compare<zero::stage::PosG, Precision>(ranks, false);
  compare<zero::stage::PosGP, Precision>(ranks, true);
}

TEST_CASE("Nccl, ordered: fp32 training under every stage equals the in-process ranks'") {
  for (int const ranks : {1, 2, 3}) every_stage<zero::Fp32>(ranks);
}
TEST_CASE("Nccl, ordered: bf16 training under every stage equals the in-process ranks'") {
  for (int const ranks : {2, 4}) every_stage<zero::Mixed<zero::bf16>>(ranks);
}

}  // namespace
}  // namespace equivalence_test
