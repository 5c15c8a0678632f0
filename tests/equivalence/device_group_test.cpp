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

template <class Stage>
void all_precisions() {
  toy::check_ranks<FakeWorld, Stage, zero::Fp32>({1, 2, 3, 4});
  toy::check_ranks<FakeWorld, Stage, zero::Mixed<zero::bf16>>({2, 3});
  toy::check_ranks<FakeWorld, Stage, zero::Mixed<zero::fp16>>({1, 4});
}

TEST_CASE("DeviceGroup trains to the reference's bits under every stage") {
  all_precisions<zero::stage::Replicated>();
  all_precisions<zero::stage::Pos>();
  all_precisions<zero::stage::PosG>();
  all_precisions<zero::stage::PosGP>();
}

}  // namespace
}  // namespace device_group_test
