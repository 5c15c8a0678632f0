/// Training over Traced: the same bits, and an error that says where each rank was. And over
/// communicators whose transfers advance only while somebody calls them, between the pieces of the
/// library's own work.
#include "contracts/loop.hpp"
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

namespace traced_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
template <class Stage>
using Watched = contracts::WatchedOptimizer<Stage, Bf16>;

/// Bits of everything after three steps.
template <class Optimizer, class C>
std::vector<std::byte> train(C& comm) {
  Optimizer optimizer{comm, toy::model(), zero::Bucket{6144}};
  contracts::load(optimizer);
  for (long step = 0; step < 3; ++step) {
    contracts::pass(optimizer, {}, step, comm.rank());
    optimizer.step({.max_norm = 1.});
  }
  return contracts::snapshot(optimizer);
}

TEST_CASE("training over Traced gives the bits of training without") {
  zero::run_ranks(3, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto const check = [&]<class Stage>(Stage) {
      CHECK(train<Watched<Stage>>(watched.comm) == train<contracts::Optimizer<Stage, Bf16>>(inner));
    };
    check(zero::stage::Replicated{});
    check(zero::stage::Pos{});
    check(zero::stage::PosG{});
    check(zero::stage::PosGP{});
    CHECK(watched.traced.calls().size() > 10);
  });
}

TEST_CASE("exposed communication of a step is a part of its time, and begins anew when told") {
  zero::run_ranks(2, [](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    auto& comm = watched.traced;
    Watched<zero::stage::PosGP> optimizer{watched.comm, toy::model()};
    contracts::load(optimizer);
    for (long step = 0; step < 3; ++step) {
      comm.reset_seconds();
      auto const begin = std::chrono::steady_clock::now();
      contracts::pass(optimizer, {}, step, inner.rank());
      optimizer.step();
      std::chrono::duration<double> const all = std::chrono::steady_clock::now() - begin;
      CHECK(comm.seconds_inside() > 0.);
      CHECK(comm.seconds_inside() < all.count());
    }
  });
}

TEST_CASE("a rank that fails while training: every other rank says where it was") {
  std::vector<std::string> described(3);
  auto const told = contracts::endings(3, [&](zero::InProcess& inner) {
    contracts::Watched watched{inner};
    Watched<zero::stage::PosGP> optimizer{watched.comm, toy::model()};
    contracts::load(optimizer);
    try {
      for (long step = 0; step < 4; ++step) {
        contracts::pass(optimizer, {}, step, inner.rank());
        if (step == 2 && inner.rank() == 1) throw std::runtime_error("no disk");
        optimizer.step();
      }
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::communication);
      described[static_cast<std::size_t>(inner.rank())] = '\n' + watched.traced.describe();
      throw;
    }
  });
  CHECK(told[1] == "no disk");
  for (int const rank : {0, 2}) {
    auto const own = static_cast<std::size_t>(rank);
    std::string const text = told[own] + described[own];
    INFO(text);
    std::string const where = "; rank " + std::to_string(rank) + " of 3 was ";
    CHECK(text.find("rank 1 failed: no disk") == 0);
    CHECK(text.find(where) != std::string::npos);
    CHECK(text.find("\nrank " + std::to_string(rank) + " of 3: ") != std::string::npos);
    CHECK(text.find(", did not succeed\n") != std::string::npos);
  }
}

/// Counts how often it is given the chance to advance.
struct Progressing : zero::Self {
  std::size_t calls = 0;
  void progress() noexcept { ++calls; }
};
static_assert(zero::ProgressingCommunicator<Progressing>);

template <class Stage, class Accumulation>
void check() {
  Progressing comm;
  zero::ShardedOptimizer optimizer{
      comm, contracts::even_model(), Stage{}, Accumulation{}, zero::Bucket{1}};
  contracts::load(optimizer);
  std::size_t const units = optimizer.units().size();
  std::size_t const buckets = optimizer.partition().bucket_count();
  REQUIRE(units > 1);
  REQUIRE(buckets > 1);
  // How often since the question before.
  auto const calls = [&] { return std::exchange(comm.calls, 0); };
  static_cast<void>(calls());
  for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit).size());
  if constexpr (Stage::sharding.parameters) CHECK(calls() >= units);
  static_cast<void>(calls());
  for (int const unit : optimizer.units_backward()) {
    optimizer.reduce(optimizer.gradients(unit));
    CHECK(calls() >= 1);
  }
  optimizer.reduce_all();
  if constexpr (Accumulation::reduced_shard) CHECK(calls() >= buckets);
  static_cast<void>(calls());
  optimizer.step();
  CHECK(calls() >= buckets);
}

TEST_CASE("a communicator that needs calls to advance gets them in every loop of a step") {
  check<zero::stage::PosG, zero::AccumulateNone>();
  check<zero::stage::PosGP, zero::AccumulateShard>();
}

}  // namespace
}  // namespace traced_test
