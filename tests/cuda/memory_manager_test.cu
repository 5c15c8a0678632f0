// One reservation of a device's memory, whose bookkeeping is the host's.
#include "cuda/streams.hpp"
#include "support/complaints.hpp"
#include "support/give_zeros.hpp"
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
}

TEST_CASE("a memory manager reserves memory of a device") {
  Streams const streams(1);
  Cuda const& space = streams.spaces[0];
  check_blocks(space, MallocAllocator(space.device()));
  check_blocks(space, AsyncAllocator(space.device(), space.stream()));
}

TEST_CASE("a memory manager of a device holds an optimizer as it was planned") {
  Complaints complaints;
  DeviceWorld::run(2, [&](InProcessCuda& comm, MallocAllocator const& allocator) {
    ContiguousMemory memory{4 * zero::MiB, allocator};
    // The trainer's own: the optimizer writes nowhere else.
    std::vector<std::byte> const own(1000, std::byte{7});
    zero::MemoryBlock const blocks[] = {memory.long_lived(own.size()),
                                        memory.short_lived(own.size())};
    for (auto const& block : blocks) comm.space().upload(block.data(), own.data(), own.size());
    zero::ShardedOptimizer optimizer{
        comm, toy::model(), zero::stage::PosGP{}, zero::Mixed<zero::bf16>{}, zero::Owned{memory}};
    toy::load(optimizer);
    give_zeros(optimizer).step();
    for (auto const& block : blocks) {
      std::vector<std::byte> now(own.size());
      comm.space().download(now.data(), block.data(), now.size());
      complaints.require(now == own, comm.rank(), "the trainer's memory is overwritten");
    }
    std::uint64_t const planned = optimizer.plan().memory.total();
    auto const now = memory.statistics();
    bool const enough =
        now.needed_bytes <= zero::reservation_bytes(optimizer.plan()) + 2 * zero::MiB;
    bool const as_planned =
        now.live_bytes == planned + 2 * own.size() && optimizer.held().total() == planned;
    complaints.require(as_planned && enough, comm.rank(), to_string(now));
  });
  CHECK(complaints.text() == "");
}

}  // namespace
}  // namespace memory_manager_test
