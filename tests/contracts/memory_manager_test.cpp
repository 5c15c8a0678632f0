/// One reservation for an optimizer and its trainer's activations: planned, held and never grown.
#include "contracts/heap.hpp"
#include "contracts/loop.hpp"
#include "zero/memory.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace memory_manager_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using zero::Role;
using Plain = contracts::Optimizer<zero::stage::PosGP, Bf16>;
using Managed = contracts::Optimizer<zero::stage::PosGP, Bf16, zero::Owned<zero::ContiguousMemory>>;

constexpr std::size_t activations = 32 * zero::KiB;

/// A pass of a trainer with activation checkpointing: what it keeps and what it does not is from
/// the same reservation, in turn.
void checkpointed_pass(Managed& optimizer,
                       zero::ContiguousMemory& memory,
                       std::vector<zero::MemoryBlock>& checkpoints,
                       long step,
                       int batch) {
  std::size_t const units = optimizer.units().size();
  for (std::size_t u = 0; u < units; ++u) {
    auto const weights = optimizer.parameters(static_cast<int>(u));
    auto const scratch = memory.short_lived(activations - 2048 * u);
    checkpoints[u] = memory.long_lived(700 + 300 * u);
    std::ranges::fill(scratch.as<float>(), 1.f);
    std::ranges::fill(checkpoints[u].as<float>(), 2.f);
  }
  for (std::size_t u = units; u-- > 0;) {
    auto const scratch = memory.short_lived(activations - 1024 * u);
    std::ranges::fill(scratch.as<float>(), 3.f);
    optimizer.reduce(contracts::unit_backward(optimizer, static_cast<int>(u), {}, step, batch));
    checkpoints[u] = {};
  }
}

}  // namespace

TEST_CASE("a memory manager holds what was planned, at the end that its role is for") {
  for (int const ranks : {1, 3}) {
    zero::Plan const plan = Managed::plan({.world_size = ranks}, toy::model());
    std::uint64_t const passing = plan.memory[Role::gradient_pool] +
                                  plan.memory[Role::gather_pool] + plan.memory[Role::staging];
    std::string complaints;
    std::mutex mutex;
    zero::run_ranks(ranks, [&](zero::InProcess& comm) {
      auto const expect = [&](bool holds, std::string const& what) {
        if (holds) return;
        std::lock_guard const lock(mutex);
        complaints += "rank " + std::to_string(comm.rank()) + ": " + what + "; ";
      };
      // With guards: the optimizer writes nowhere else.
      zero::ContiguousMemory memory{zero::reservation_bytes(plan) + 2 * activations,
                                    zero::Guarded{}};
      {
        Managed optimizer{comm, toy::model(), zero::Owned{memory}};
        auto const now = memory.statistics();
        expect(optimizer.held() == plan.memory, "held is not planned");
        expect(now.live_bytes == plan.memory.total(), "live is not planned");
        expect(now.short_lived.live_bytes == passing, "the short-lived end");
        expect(now.long_lived.live_bytes == plan.memory.total() - passing, "the long-lived end");

        Plain reference{comm, toy::model()};
        contracts::load(optimizer);
        contracts::load(reference);
        std::vector<zero::MemoryBlock> checkpoints(optimizer.units().size());
        for (long step = 0; step < 3; ++step) {
          contracts::pass(reference, {}, step, comm.rank());
          reference.step();
          auto const allocations = heap::mine().allocations;
          checkpointed_pass(optimizer, memory, checkpoints, step, comm.rank());
          optimizer.step();
          bool const quiet = heap::mine().allocations == allocations;
          expect(quiet || step == 0, "a step allocates");
          expect(memory.statistics().live_bytes == plan.memory.total(), "after a step");
          memory.check();
        }
        expect(contracts::snapshot(optimizer) == contracts::snapshot(reference), "other bits");
      }
      expect(memory.statistics().live_bytes == 0, "not given back");
      expect(memory.statistics().largest_free_block == memory.statistics().reserved_bytes,
             "fragmented afterwards");
    });
    CHECK(complaints == "");
  }
}

TEST_CASE("a memory manager is large enough for its plan, and says what does not fit") {
  zero::run_ranks(1, [](zero::InProcess& comm) {
    zero::Plan const plan = Managed::plan({}, toy::model());
    zero::ContiguousMemory enough{zero::reservation_bytes(plan)};
    { Managed const optimizer{comm, toy::model(), zero::Owned{enough}}; }
    std::uint64_t const needed = enough.statistics().needed_bytes;
    CHECK(needed >= plan.memory.total());
    { Managed const optimizer{comm, toy::model(), zero::Owned{zero::ContiguousMemory{needed}}}; }

    zero::ContiguousMemory small{needed - zero::ContiguousMemory::page};
    std::string said;
    try {
      Managed const optimizer{comm, toy::model(), zero::Owned{small}};
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::resource);
      said = error.message();
    }
    INFO(said);
    CHECK(said.find("no room for ") == 0);
    CHECK(said.find(" at a multiple of 4096: the largest free block for them has ") !=
          std::string::npos);
    CHECK(small.statistics().live_bytes == 0);
  });
}

}  // namespace memory_manager_test
