/// Activation checkpoints over processes: what was stored comes back under every placement, by
/// every route.
#include "zero/activations.hpp"

#include "activations/late_transfer.hpp"
#include "activations/passes.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"
#include "zero/comm/decorators/counting.hpp"

namespace activations_test {
namespace {

using mpi_tests::Route;
namespace activation = zero::activation;

template <class Placement>
void check(Route route) {
  INFO(std::string(mpi_tests::name(route)));
  auto const passes = activations::one_forward_one_backward(5, 2);
  mpi_tests::on_all(route, [&](auto& comm) {
    zero::Counting counting{comm};
    activations::LateTransfer transfer;
    zero::Activations store{counting,
                            activations::checkpoints(),
                            Placement{},
                            transfer,
                            zero::MicroBatches{2},
                            zero::Owned{comm.allocator()}};
    CHECK(store.plan().memory == store.held());
    for (int step = 0; step < 2; ++step) {
      counting.reset();
      CHECK(activations::keeps(store, passes));
      CHECK(counting.counts().bucket_total().elements == 5 * store.plan().sent_elements);
    }
  });
}

TEST_CASE("Activations over Mpi") {
  for (Route const route : mpi_tests::routes) {
    check<activation::Whole>(route);
    check<activation::Pa>(route);
    check<activation::PaCpu>(route);
  }
}

}  // namespace
}  // namespace activations_test
