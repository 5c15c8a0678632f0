/// The placement never changes a bit of the gradients, whatever the ranks, sizes and schedule.
#include "activations/late_transfer.hpp"
#include "activations/network.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "zero/activations.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/transfer/file.hpp"
#include "zero/transfer/host.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace gradients_test {
namespace {

using activations::checkpoints;
using activations::Pass;
using zero::MicroBatches;
using zero::Prefetch;
namespace activation = zero::activation;

struct Schedule {
  char const* name;
  std::vector<Pass> passes;
  int in_flight;
};

std::vector<Schedule> schedules() {
  return {{"in turn", activations::in_turn(3), 1},
          {"1F1B", activations::one_forward_one_backward(7, 3), 3},
          {"layers in turn", activations::layers_in_turn(), 2}};
}

bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Runs every schedule with every prefetch depth on every number of ranks.
template <class Placement, class MakeTransfer>
void compare(MakeTransfer const& make_transfer) {
  for (Schedule const& schedule : schedules()) {
    activations::KeepAll keep;
    std::vector<float> const expected = activations::gradients(keep, schedule.passes);
    float sum = 0.f;
    for (float const value : expected) sum += value * value;
    REQUIRE(sum > 1.f);
    for (int const ranks : {1, 2, 3, 4}) {
      for (int const depth : {0, 1, 3}) {
        CAPTURE(schedule.name);
        CAPTURE(ranks);
        CAPTURE(depth);
        std::atomic<int> right{0};
        zero::run_ranks(ranks, [&](zero::InProcess& comm) {
          auto transfer = make_transfer();
          zero::Activations store{comm,
                                  checkpoints(),
                                  Placement{},
                                  *transfer,
                                  MicroBatches{schedule.in_flight},
                                  Prefetch{depth}};
          bool good =
              store.plan().memory == store.held() && store.plan().slower == store.held_slower();
          for (int step = 0; step < 2; ++step) {
            good = good && same_bits(activations::gradients(store, schedule.passes), expected);
          }
          right += good ? 1 : 0;
        });
        CHECK(right == ranks);
      }
    }
  }
}

template <class T>
std::unique_ptr<T> made() {
  return std::make_unique<T>();
}

TEST_CASE("whole") { compare<activation::Whole>(made<zero::HostTransfer>); }
TEST_CASE("Pa") { compare<activation::Pa>(made<zero::HostTransfer>); }
TEST_CASE("Pa+cpu, copies") { compare<activation::PaCpu>(made<zero::HostTransfer>); }
TEST_CASE("Pa+cpu, transfers as late as they may be") {
  compare<activation::PaCpu>(made<activations::LateTransfer>);
}
TEST_CASE("Pa+cpu, a file") {
  checkpoint_tests::TemporaryDirectory const directory;
  compare<activation::PaCpu>(
      [&] { return std::make_unique<zero::FileTransfer>(directory.path()); });
}

TEST_CASE("over the rows of a grid: groups from split") {
  std::vector<Pass> const passes = activations::in_turn(2);
  activations::KeepAll keep;
  std::vector<float> const expected = activations::gradients(keep, passes);
  std::atomic<int> right{0};
  zero::run_ranks(6, [&](zero::InProcess& world) {
    zero::InProcess row = world.split(world.rank() / 3, world.rank());
    zero::Activations store{row, checkpoints()};
    static_assert(std::is_same_v<decltype(store)::Placement, activation::Pa>);
    right +=
        store.plan().group_size == 3 && same_bits(activations::gradients(store, passes), expected);
  });
  CHECK(right == 6);
}

TEST_CASE("alone, without threads") {
  std::vector<Pass> const passes = activations::in_turn(2);
  activations::KeepAll keep;
  std::vector<float> const expected = activations::gradients(keep, passes);
  zero::Self comm;
  zero::HostTransfer transfer;
  zero::Activations here{comm, checkpoints()};
  zero::Activations there{comm, checkpoints(), transfer, activation::PaCpu{}};
  CHECK(same_bits(activations::gradients(here, passes), expected));
  CHECK(same_bits(activations::gradients(there, passes), expected));
  CHECK(here.plan().memory[zero::Role::activation_pool] == 0);
  CHECK(here.plan().sent_elements == 0);
}

}  // namespace
}  // namespace gradients_test
