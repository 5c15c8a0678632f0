#include "cuda/fake_runtime.hpp"
#include "harness.hpp"
#include "zero/comm/device_threads/group.hpp"
#include "zero/comm/run_ranks.hpp"

#include <memory>
#include <utility>

namespace device_group_test {
namespace {

using Group = zero::DeviceGroup<fake::Api>;

struct FakeWorld {
  template <class Body>
  static void run(int ranks, Body const& body) {
    auto const machine = std::make_shared<fake::Machine>();
    auto const spaces = fake::spaces(ranks, machine);
    zero::run_ranks(Group::group(spaces), [&](Group& comm) { body(comm, zero::HostAllocator{}); });
  }
};

// Precisions in turn: that each equals the reference under each stage is shown over threads.
TEST_CASE("DeviceGroup trains to the reference's bits under every stage") {
  using toy::check_ranks;
  check_ranks<FakeWorld, zero::stage::Replicated, zero::Fp32>({1, 2, 3, 4});
  check_ranks<FakeWorld, zero::stage::Pos, zero::Mixed<zero::bf16>>({1, 2, 3, 4});
  check_ranks<FakeWorld, zero::stage::PosG, zero::Mixed<zero::fp16>>({1, 2, 3, 4});
  check_ranks<FakeWorld, zero::stage::PosGP, zero::Mixed<zero::bf16>>({1, 2, 3, 4});
}

}  // namespace
}  // namespace device_group_test
