#include "zero/comm/mpi/pool.hpp"

#include "zero/base/error.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace pool_test {
namespace {

using zero::mpi::detail::Pool;

struct Memory {
  alignas(4096) std::byte bytes[64 * 1024];
};

TEST_CASE("pieces are disjoint, aligned, inside, and can be had again, whatever the order") {
  auto const memory = std::make_shared<Memory>();
  Pool pool(memory, memory->bytes, sizeof memory->bytes);
  struct Piece {
    std::byte* at;
    std::size_t bytes;
  };
  std::vector<Piece> taken;
  std::uint32_t random = 12345;
  auto const next = [&](std::uint32_t below) {
    random = random * 1664525 + 1013904223;
    return (random >> 8) % below;
  };
  std::size_t refused = 0;
  for (int turn = 0; turn < 4000; ++turn) {
    if (!taken.empty() && next(2) == 0) {
      std::size_t const which = next(static_cast<std::uint32_t>(taken.size()));
      pool.give_back(taken[which].at);
      taken.erase(taken.begin() + static_cast<std::ptrdiff_t>(which));
      continue;
    }
    std::size_t const bytes = 1 + next(9000);
    std::size_t const alignment = std::size_t{1} << next(13);
    std::byte* at = nullptr;
    try {
      at = static_cast<std::byte*>(pool.take(bytes, alignment));
    } catch (zero::Error const& error) {
      CHECK(error.kind() == zero::ErrorKind::resource);
      ++refused;
      continue;
    }
    REQUIRE(reinterpret_cast<std::uintptr_t>(at) % alignment == 0);
    REQUIRE(at >= memory->bytes);
    REQUIRE(at + bytes <= memory->bytes + sizeof memory->bytes);
    for (Piece const& other : taken) {
      REQUIRE((at + bytes <= other.at || other.at + other.bytes <= at));
    }
    taken.push_back({at, bytes});
  }
  CHECK(refused > 0);
  CHECK(pool.pieces() == taken.size());
  for (Piece const& piece : taken) pool.give_back(piece.at);
  CHECK(pool.left() == sizeof memory->bytes);
  // All of it is one piece again.
  CHECK(pool.take(sizeof memory->bytes, 4096) == memory->bytes);
}

TEST_CASE("nothing costs nothing, and what is not the pool's is left alone") {
  auto const memory = std::make_shared<Memory>();
  Pool pool(memory, memory->bytes, sizeof memory->bytes);
  CHECK(pool.take(0, 64) == nullptr);
  pool.give_back(nullptr);
  pool.give_back(memory->bytes + 64);
  CHECK(pool.left() == sizeof memory->bytes);
}

TEST_CASE("the pool keeps what it lies in") {
  auto memory = std::make_shared<Memory>();
  std::weak_ptr<Memory> const seen = memory;
  auto pool = std::make_shared<Pool>(memory, memory->bytes, sizeof memory->bytes);
  zero::mpi::SharedAllocator allocator(pool);
  memory.reset();
  pool.reset();
  CHECK_FALSE(seen.expired());
  void* const piece = allocator.allocate(100, 64);
  allocator.deallocate(piece, 100, 64);
  allocator = {};
  CHECK(seen.expired());
}

}  // namespace
}  // namespace pool_test
