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

/// Parameters in fp64 after four steps of two micro-batches.
template <class Comm, class Space, class Memory>
std::vector<double> train_in_double(Comm& comm, Space const& space, Memory const& memory) {
  constexpr std::size_t count = 2003;
  zero::ShardedOptimizer optimizer{comm,
                                   {{.name = "w", .shape = {count}, .weight_decay = 0.3}},
                                   zero::stage::PosG{},
                                   zero::Fp64{},
                                   zero::AccumulateShard{},
                                   memory};
  optimizer.load_parameters([](auto const&, std::size_t first, std::span<double> values) {
    for (double& value : values) value = 1. / static_cast<double>(3 + first++);
  });
  std::vector<double> values(count);
  for (std::size_t step = 0; step < 4; ++step) {
    for (std::size_t micro = 0; micro < 2; ++micro) {
      optimizer.micro_step({.last = micro == 1});
      auto gradients = optimizer.gradients(0);
      auto const batch = static_cast<std::size_t>(comm.rank()) * 2 + micro + 4 * step;
      for (std::size_t i = 0; i < count; ++i) {
        values[i] = 1. / static_cast<double>(1 + (i * 7919 + batch * 104729) % 1009) - 0.01;
      }
      space.upload(gradients[0].data(), values.data(), count * sizeof(double));
      optimizer.reduce(std::move(gradients));
    }
    optimizer.step({.learning_rate = 1e-3, .max_norm = 0.5});
  }
  space.download(values.data(), optimizer.parameter(0).data(), count * sizeof(double));
  return values;
}

TEST_CASE("InProcessCuda trains to the host's bits in fp64") {
  std::vector<double> expected;
  zero::run_ranks(3, [&](zero::InProcess& comm) {
    auto const values = train_in_double(comm, zero::space::Host{}, zero::Owned<>{});
    if (comm.rank() == 0) expected = values;
  });
  DeviceWorld::run(3, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
    bool const equal = train_in_double(comm, comm.space(), zero::Owned{allocator}) == expected;
    CHECK(equal);
  });
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
