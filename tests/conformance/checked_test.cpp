#include "zero/comm/checked.hpp"

#include "conformance/communicator.hpp"
#include "cuda/staged.hpp"
#include "trapped_space.hpp"
#include "zero/comm/run_ranks.hpp"

namespace {

struct CheckedWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::InProcess& inner) {
      zero::Checked comm{inner};
      body(comm);
    });
  }
};

/// Calls are compared through the memory of a device.
template <trapped::Collectives when>
struct DeviceWorld {
  static constexpr int ranks[] = {1, 3};
  template <class Body>
  static void run(int ranks, Body const& body) {
    zero::run_ranks(ranks, [&](zero::InProcess& inner) {
      trapped::Device device;
      trapped::Allocator const allocator{&device};
      using Checked = zero::Checked<trapped::Communicator, trapped::Allocator>;
      Staged<Checked, trapped::Allocator> comm(
          Checked(trapped::Communicator(inner, device, when), allocator), allocator);
      body(comm);
    });
  }
};
using Early = DeviceWorld<trapped::Collectives::early>;
using Late = DeviceWorld<trapped::Collectives::late>;

TEST_CASE("Checked: operations") { conformance::check_operations<CheckedWorld>(); }
TEST_CASE("Checked: collectives under way") { conformance::check_outstanding<CheckedWorld>(); }
TEST_CASE("Checked: sub-groups") { conformance::check_groups<CheckedWorld>(); }
TEST_CASE("Checked on a device: operations, done early") { conformance::check_operations<Early>(); }
TEST_CASE("Checked on a device: operations, done late") { conformance::check_operations<Late>(); }

}  // namespace
