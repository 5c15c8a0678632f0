/// Communicators whose transfers advance only while somebody calls them are called between the
/// pieces of the library's own work.
#include "contracts/loop.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <utility>

namespace progress_test {
namespace {

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
}  // namespace progress_test
