#include "zero/comm/decorators/checked.hpp"

#include "conformance/communicator.hpp"
#include "cuda/staged.hpp"
#include "support/standard.hpp"
#include "trapped_space.hpp"
#include "zero/comm/run_ranks.hpp"

namespace checked_test {
namespace {

struct CheckedWorld {
  static constexpr int ranks[] = {1, 2, 3, 4, 5, 8};
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(world_size, [&](zero::InProcess& inner) {
      zero::Checked comm{inner};
      body(comm);
    });
  }
};

/// Memory of a device, used again and again: the suite asks for more in all than a device has.
struct Recycling {
  trapped::Allocator source;
  std::shared_ptr<std::multimap<std::size_t, void*>> spare =
      std::make_shared<std::multimap<std::size_t, void*>>();

  void* allocate(std::size_t bytes, std::size_t /*alignment*/) {
    auto const found = spare->find(bytes);
    if (found == spare->end()) return source.allocate(bytes, 4096);
    void* const memory = found->second;
    spare->erase(found);
    return memory;
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t /*alignment*/) noexcept {
    spare->emplace(bytes, memory);
  }
};

/// Calls are compared through the memory of a device.
template <trapped::Collectives When>
struct DeviceWorld {
  static constexpr int ranks[] = {1, 3};
  template <class Body>
  static void run(int world_size, Body const& body) {
    zero::run_ranks(world_size, [&](zero::InProcess& inner) {
      trapped::Device device;
      Recycling const allocator{.source = {&device}};
      using Checked = zero::Checked<trapped::Communicator, Recycling>;
      Staged<Checked, Recycling> comm(
          Checked(trapped::Communicator(inner, device, When), allocator), allocator);
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
}  // namespace checked_test
