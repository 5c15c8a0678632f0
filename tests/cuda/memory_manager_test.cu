// One reservation of a device's memory: its bookkeeping is the host's, its guards the device's.
#include "cuda/streams.hpp"
#include "support/complaints.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "support/toy_model.hpp"
#include "zero/memory.hpp"

namespace memory_manager_test {
namespace {

using zero::ContiguousMemory;
using zero::InProcessCuda;
using zero::KiB;
using zero::device::AsyncAllocator;
using zero::device::MallocAllocator;
using zero::space::Cuda;

std::string found_by(ContiguousMemory const& memory) {
  return refusal([&] { memory.check(); });
}

template <class Allocator>
void check_blocks(Cuda const& space, Allocator const& allocator) {
  ContiguousMemory plain{100 * KiB, allocator};
  CHECK(plain.statistics().reserved_bytes == 100 * KiB);
  auto const low = plain.long_lived(3 * KiB);
  auto const high = plain.short_lived(5 * KiB, 4096);
  CHECK(reinterpret_cast<std::uintptr_t>(high.data()) % 4096 == 0);
  CHECK(static_cast<std::byte*>(low.data()) < static_cast<std::byte*>(high.data()));
  int value = 7;
  space.upload(high.data(), &value, sizeof(value));
  space.copy(low.data(), high.data(), sizeof(value));
  value = 0;
  space.download(&value, low.data(), sizeof(value));
  CHECK(value == 7);

  ContiguousMemory guarded{100 * KiB, allocator, zero::Guarded{space}};
  auto const block = guarded.short_lived(1000);
  space.zero(block.data(), 1000);
  CHECK(found_by(guarded) == "");
  space.zero(static_cast<std::byte*>(block.data()) + 1000, 2);
  CHECK(found_by(guarded) ==
        "memory was written to outside of a short-lived block of 1000 bytes: 2 bytes of its guards "
        "are changed, the first of them 1 bytes behind its last");
  // Mended, since a block that is damaged when it goes out of scope ends the program.
  unsigned char const guard[] = {0xfd, 0xfd};
  space.upload(static_cast<std::byte*>(block.data()) + 1000, guard, sizeof(guard));
  CHECK(found_by(guarded) == "");
}

TEST_CASE("a memory manager reserves memory of a device, and guards it by a stream") {
  Streams const streams(1);
  Cuda const& space = streams.spaces[0];
  check_blocks(space, MallocAllocator(space.device()));
  check_blocks(space, AsyncAllocator(space.device(), space.stream()));
}

TEST_CASE("a memory manager of a device holds an optimizer as it was planned") {
  Complaints complaints;
  DeviceWorld::run(2, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
    ContiguousMemory memory{4 * zero::MiB, allocator, zero::Guarded{comm.space()}};
    zero::ShardedOptimizer optimizer{
        comm, toy::model(), zero::stage::PosGP{}, zero::Mixed<zero::bf16>{}, zero::Owned{memory}};
    toy::load(optimizer);
    optimizer.step();
    memory.check();
    std::uint64_t const planned = optimizer.plan().memory.total();
    auto const now = memory.statistics();
    bool const enough =
        now.needed_bytes <= zero::reservation_bytes(optimizer.plan()) + 2 * zero::MiB;
    bool const as_planned = now.live_bytes == planned && optimizer.held().total() == planned;
    complaints.require(as_planned && enough, comm.rank(), to_string(now));
  });
  CHECK(complaints.text() == "");
}

}  // namespace
}  // namespace memory_manager_test
