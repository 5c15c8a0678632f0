// Threads as ranks over the GPUs there are: the suites that every communicator passes.
#include "conformance/communicator.hpp"
#include "cuda/staged.hpp"
#include "cuda/streams.hpp"
#include "differential/check_cases.hpp"
#include "support/refusal.hpp"

namespace in_process_cuda_test {
namespace {

using zero::InProcessCuda;
using zero::device::MallocAllocator;

struct StagedWorld {
  static constexpr int ranks[] = {1, 2, 4};
  template <class Body>
  static void run(int ranks, Body const& body) {
    DeviceWorld::run(ranks, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
      Staged<InProcessCuda, MallocAllocator> staged(std::move(comm), allocator);
      body(staged);
    });
  }
};

TEST_CASE("InProcessCuda: operations") { conformance::check_operations<StagedWorld>(); }
TEST_CASE("InProcessCuda: collectives under way") { conformance::check_outstanding<StagedWorld>(); }
TEST_CASE("InProcessCuda: sub-groups") { conformance::check_groups<StagedWorld>(); }

TEST_CASE("InProcessCuda trains to the host's bits under every stage") {
  differential::check_stages<DeviceWorld>(4, 8);
}

TEST_CASE("InProcessCuda: a step that ranks were told differently is refused on the device") {
  DeviceWorld::run(2, [](InProcessCuda& comm, MallocAllocator const& allocator) {
    zero::ShardedOptimizer optimizer{
        comm, {{.name = "w", .shape = {3000}}}, zero::stage::PosG{}, zero::Owned{allocator}};
    optimizer.adopt_parameters();
    for (bool const differ : {false, true, false}) {
      optimizer.reduce(optimizer.gradients(0));
      optimizer.enqueue_step({.max_norm = differ && comm.rank() == 1 ? 2. : 1.});
      CHECK(is_refused([&] { static_cast<void>(optimizer.report()); }) == differ);
    }
    CHECK(optimizer.steps() == 2);
  });
}

}  // namespace
}  // namespace in_process_cuda_test
