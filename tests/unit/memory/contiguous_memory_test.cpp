/// What a trainer and the library see of a reservation with two ends.
#include "support/child_process.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/memory.hpp>

namespace contiguous_memory_test {
namespace {

using zero::ContiguousMemory;
using zero::ErrorKind;
using zero::KiB;
using zero::MemoryBlock;
using zero::Role;

bool has(std::string const& text, char const* part) {
  INFO(text << "\nhas no: " << part);
  return text.find(part) != std::string::npos;
}

std::byte* bytes_of(MemoryBlock const& block) { return static_cast<std::byte*>(block.data()); }

/// Counts what is taken from it and given back.
struct Ledger {
  int taken = 0;
  int returned = 0;
  bool full = false;
};
struct Counting {
  Ledger* ledger;
  void* allocate(std::size_t bytes, std::size_t alignment) {
    if (ledger->full) throw std::bad_alloc();
    ++ledger->taken;
    return zero::HostAllocator{}.allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) {
    ++ledger->returned;
    zero::HostAllocator{}.deallocate(memory, bytes, alignment);
  }
};

}  // namespace

TEST_CASE("contiguous memory: what lives long lies at the bottom, what does not at the top") {
  ContiguousMemory memory{64 * KiB};
  auto const checkpoint = memory.long_lived(1000);
  auto const activation = memory.short_lived(2000);
  auto const gradient = memory.long_lived(3000);
  auto const scratch = memory.short_lived(4000);
  CHECK(bytes_of(checkpoint) + 1024 == bytes_of(gradient));
  CHECK(bytes_of(scratch) + 4096 == bytes_of(activation));
  CHECK(bytes_of(activation) + 2048 == bytes_of(checkpoint) + 64 * KiB);
  auto const now = memory.statistics();
  CHECK(now.live_bytes == 10000);
  CHECK(now.long_lived.live_bytes == 4000);
  CHECK(now.long_lived.extent_bytes == 1024 + 3072);
  CHECK(now.short_lived.extent_bytes == 2048 + 4096);
  CHECK(now.free_bytes == 64 * KiB - 10240);
  CHECK(now.largest_free_block == now.free_bytes);
  CHECK(now.fragmentation() == 0.);
}

TEST_CASE("contiguous memory: roles decide the end") {
  ContiguousMemory memory{64 * KiB};
  std::vector<std::pair<void*, Role>> blocks;
  for (int r = 0; r < zero::role_count; ++r) {
    auto const role = static_cast<Role>(r);
    void* const block = memory.allocate(1024, 1024, role);
    auto const now = memory.statistics();
    bool const passing = role == Role::gradient_pool || role == Role::gather_pool ||
                         role == Role::staging || role == Role::activation_pool ||
                         role == Role::activation_staging;
    CHECK(now.short_lived.live_bytes == (passing ? 1024 : 0));
    CHECK(now.long_lived.live_bytes == (passing ? 0 : 1024));
    memory.deallocate(block, 1024, 1024);
  }
  void* const unsaid = memory.allocate(1, 1);
  CHECK(memory.statistics().long_lived.live_bytes == 1);
  memory.deallocate(unsaid, 1, 1);
}

TEST_CASE("contiguous memory: an alignment is a power of two") {
  ContiguousMemory memory{4 * KiB};
  auto const refused = [&](std::size_t of, ErrorKind kind) {
    return refusal([&] { static_cast<void>(memory.long_lived(1, of)); }, kind);
  };
  CHECK(has(refused(3, ErrorKind::invalid_argument), "power of two, not 3"));
  CHECK(has(refused(0, ErrorKind::invalid_argument), "power of two, not 0"));
  CHECK(has(refused(std::size_t{1} << 63, ErrorKind::resource), "no room for 1 long-lived bytes"));
}

TEST_CASE("contiguous memory: where there is no room, the error says what there is") {
  ContiguousMemory memory{64 * KiB};
  auto const low = memory.long_lived(30 * KiB);
  auto const high = memory.short_lived(1 * KiB);
  auto hole = memory.short_lived(20 * KiB);
  auto const last = memory.short_lived(5 * KiB);
  hole = {};
  auto const said = [&](std::size_t bytes, std::size_t alignment, Role role) {
    return refusal([&] { static_cast<void>(memory.allocate(bytes, alignment, role)); },
                   ErrorKind::resource);
  };
  CHECK(
      said(21 * KiB, 4096, Role::gather_pool) ==
      "no room for 21504 short-lived bytes for gather_pool at a multiple of 4096: the largest free "
      "block for them has 20480 bytes, of 28672 that are free; 30720 long-lived and 6144 "
      "short-lived bytes are in use, of 65536 reserved");
  CHECK(has(said(9 * KiB, 1, Role::state),
            "no room for 9216 long-lived bytes for state at a multiple of 1: the largest free "
            "block for them has 8192 bytes"));
  CHECK(has(said(~std::size_t{0}, 1, Role::staging), "18446744073709551615"));
  CHECK(memory.short_lived(20 * KiB).bytes() == 20 * KiB);
  CHECK(memory.long_lived(8 * KiB).bytes() == 8 * KiB);
}

TEST_CASE("contiguous memory: the reservation is taken once, and goes back with its last user") {
  Ledger ledger;
  {
    MemoryBlock block;
    {
      ContiguousMemory memory{5000, Counting{&ledger}};
      CHECK(memory.statistics().reserved_bytes == 8192);
      ContiguousMemory const copy = static_cast<ContiguousMemory&&>(memory);
      // Nobody is left without a reservation.
      block = memory.long_lived(100);
      CHECK(copy.statistics().live_bytes == 100);
      auto moved = std::move(block);
      block = std::move(moved);
      CHECK(copy.statistics() == memory.statistics());
    }
    CHECK(ledger.returned == 0);
    CHECK(block.as<float>().size() == 25);
    std::ranges::fill(block.as<float>(), 1.f);
  }
  CHECK(ledger.taken == 1);
  CHECK(ledger.returned == 1);
  ledger.full = true;
  CHECK(refusal([&] { ContiguousMemory const none(5000, Counting{&ledger}); },
                ErrorKind::resource) == "cannot reserve 8192 bytes of memory");
  CHECK(refusal([] { ContiguousMemory const none(0); }) == "a reservation of 0 bytes");
}

TEST_CASE("contiguous memory: 0 bytes are no block") {
  ContiguousMemory memory{4 * KiB};
  CHECK(memory.allocate(0, 64) == nullptr);
  memory.deallocate(nullptr, 0, 64);
  auto const nothing = memory.short_lived(0);
  CHECK(nothing.data() == nullptr);
  CHECK(nothing.as<float>().empty());
  CHECK(memory.statistics().short_lived.extent_bytes == 0);
}

TEST_CASE("contiguous memory: the address sanitizer is told what is not in use") {
  // Of a block of 100 bytes: any access after it was given back, and what is behind it before.
  for (bool const gives_back : {false, true}) {
    for (std::ptrdiff_t const at : {-1, 0, 99, 100, 255, 256}) {
      CAPTURE(gives_back);
      CAPTURE(at);
      int status = 0;
      std::string const said = last_words(
          [&] {
            ContiguousMemory memory{64 * KiB};
            MemoryBlock const below = memory.long_lived(250);
            auto* const block = static_cast<std::byte*>(memory.allocate(100, 64));
            if (gives_back) memory.deallocate(block, 100, 64);
            static_cast<void>(*static_cast<std::byte volatile*>(block + at));
          },
          status);
      bool const allowed = !gives_back && at >= 0 && at < 100;
#if defined(__SANITIZE_ADDRESS__)
      CHECK((status == 0) == allowed);
      CHECK(has(said, allowed ? "" : "ERROR: AddressSanitizer"));
#else
      static_cast<void>(allowed);
      CHECK(status == 0);
#endif
    }
  }
}

TEST_CASE("contiguous memory: statistics are text") {
  ContiguousMemory memory{1 * zero::MiB};
  auto const low = memory.long_lived(300 * KiB);
  auto hole = memory.short_lived(100 * KiB);
  auto const high = memory.short_lived(1000);
  hole = {};
  CHECK(to_string(memory.statistics()) ==
        "memory: 301.0 KiB live (peak 401.0 KiB) of 1.0 MiB, 723.0 KiB free, largest block 623.0 "
        "KiB, fragmentation 13.8%, needed 404.0 KiB\n"
        "  long-lived 300.0 KiB (extent 300.0 KiB), short-lived 1000 B (extent 101.0 KiB)\n");
  zero::MemoryStatistics statistics{};
  CHECK(statistics.fragmentation() == 0.);
  statistics.free_bytes = 10;
  CHECK(statistics.fragmentation() == 1.);
  statistics.largest_free_block = 10;
  CHECK(has(to_string(statistics), "fragmentation 0.0%"));
}

}  // namespace contiguous_memory_test
