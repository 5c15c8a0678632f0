/// What is fetched is what was stored, whatever the placement, the ranks and the schedule.
#include "activations/late_transfer.hpp"
#include "activations/passes.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/comm/self.hpp"
#include "zero/transfer/file_transfer.hpp"
#include "zero/transfer/host_transfer.hpp"

namespace placements_test {
namespace {

using activations::checkpoints;
using activations::keeps;
using activations::Pass;
using zero::MicroBatches;
using zero::Prefetch;
namespace activation = zero::activation;

struct Schedule {
  char const* name;
  std::vector<Pass> passes;
  int in_flight;
};

/// Runs every schedule with every prefetch depth on every number of ranks.
template <class Placement, class MakeTransfer>
void compare(MakeTransfer const& make_transfer) {
  for (Schedule const& schedule : {Schedule{"in turn", activations::in_turn(3), 1},
                                   Schedule{"1F1B", activations::one_forward_one_backward(7, 3), 3},
                                   Schedule{"layers in turn", activations::layers_in_turn(), 2}}) {
    for (int const ranks : {1, 2, 3, 4}) {
      for (int const depth : {0, 1, 3}) {
        INFO(Placement::name, ", ", schedule.name, ", ranks ", ranks, ", prefetch ", depth);
        CHECK(activations::on_all(ranks, [&](zero::InProcess& comm) {
          auto transfer = make_transfer();
          zero::Activations store{comm,
                                  checkpoints(),
                                  Placement{},
                                  *transfer,
                                  MicroBatches{schedule.in_flight},
                                  Prefetch{depth}};
          bool good =
              store.plan().memory == store.held() && store.plan().slower == store.held_slower();
          for (int step = 0; step < 2; ++step) good = good && keeps(store, schedule.passes);
          return good;
        }));
      }
    }
  }
}

template <class T>
std::unique_ptr<T> made() {
  return std::make_unique<T>();
}

TEST_CASE("with every placement and transfer") {
  compare<activation::Whole>(made<zero::HostTransfer>);
  compare<activation::Pa>(made<zero::HostTransfer>);
  compare<activation::PaCpu>(made<zero::HostTransfer>);
  compare<activation::PaCpu>(made<activations::LateTransfer>);
  checkpoint_tests::TemporaryDirectory const directory;
  compare<activation::PaCpu>(
      [&] { return std::make_unique<zero::FileTransfer>(directory.path()); });
}

TEST_CASE("over the rows of a grid: groups from split") {
  std::vector<Pass> const passes = activations::in_turn(2);
  CHECK(activations::on_all(6, [&](zero::InProcess& world) {
    zero::InProcess row = world.split(world.rank() / 3, world.rank());
    zero::Activations store{row, checkpoints()};
    static_assert(std::is_same_v<decltype(store)::Placement, activation::Pa>);
    return store.plan().group_size == 3 && keeps(store, passes);
  }));
}

TEST_CASE("alone, without threads") {
  std::vector<Pass> const passes = activations::in_turn(2);
  zero::Self comm;
  zero::HostTransfer transfer;
  zero::Activations here{comm, checkpoints()};
  zero::Activations there{comm, checkpoints(), transfer, activation::PaCpu{}};
  CHECK(keeps(here, passes));
  CHECK(keeps(there, passes));
  CHECK(here.plan().memory[zero::Role::activation_pool] == 0);
  CHECK(here.plan().sent_elements == 0);
}

}  // namespace
}  // namespace placements_test
