/// Memory that processes share: pools, pages behind them, and lanes of chunks.
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/mpi/lane.hpp"
#include "zero/comm/mpi/pages.hpp"
#include "zero/comm/mpi/pool.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace memory_test {
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

using zero::mpi::detail::chunks_under_way;
using zero::mpi::detail::Lane;

TEST_CASE("a lane holds two chunks and gives them in order") {
  Lane lane;
  CHECK(lane.arrived() == -1);
  for (int turn = 0; turn < 5; ++turn) {
    int const first = lane.room();
    lane.send();
    int const second = lane.room();
    lane.send();
    CHECK(first != second);
    CHECK(lane.room() == -1);
    CHECK(lane.arrived() == first);
    lane.take();
    CHECK(lane.room() == first);
    CHECK(lane.arrived() == second);
    lane.take();
    CHECK(lane.arrived() == -1);
  }
}

TEST_CASE("what a sender wrote before is there when a chunk arrives, and room is room") {
  Lane lane;
  std::uint64_t chunks[chunks_under_way][100] = {};
  constexpr std::uint64_t count = 2000;
  std::uint64_t wrong = 0;
  {
    std::jthread const sender([&] {
      for (std::uint64_t number = 1; number <= count;) {
        int const slot = lane.room();
        if (slot < 0) {
          std::this_thread::yield();
          continue;
        }
        for (std::uint64_t& word : chunks[slot]) word = number;
        lane.send();
        ++number;
      }
    });
    for (std::uint64_t number = 1; number <= count;) {
      int const slot = lane.arrived();
      if (slot < 0) {
        std::this_thread::yield();
        continue;
      }
      for (std::uint64_t const word : chunks[slot]) wrong += word == number ? 0u : 1u;
      lane.take();
      ++number;
    }
  }
  CHECK(wrong == 0);
}

#if defined(__linux__)
using zero::mpi::detail::get_pages;

/// A mapping of which the file behind it has only the first pages, as on a file system that is
/// full.
class Sparse {
 public:
  Sparse(std::size_t pages, std::size_t backed)
      : page_(static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))), bytes_(pages * page_) {
    int const file = ::memfd_create("sparse", 0);
    REQUIRE(file >= 0);
    REQUIRE(::ftruncate(file, static_cast<off_t>(backed * page_)) == 0);
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(memory != MAP_FAILED);
    ::close(file);
    data_ = static_cast<std::byte*>(memory);
  }
  Sparse(Sparse const&) = delete;
  Sparse& operator=(Sparse const&) = delete;
  ~Sparse() { ::munmap(data_, bytes_); }
  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t page() const { return page_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t page_;
  std::size_t bytes_;
  std::byte* data_ = nullptr;
};

TEST_CASE("pages that are to be had are there; of those that are not one is told [pages]") {
  Sparse const memory(4, 2);
  CHECK(get_pages(memory.data(), 2 * memory.page()));
  CHECK(get_pages(memory.data() + 100, 8));
  CHECK(get_pages(memory.data() + memory.page() - 1, 2));
  CHECK_FALSE(get_pages(memory.data() + 2 * memory.page() - 1, 2));
  CHECK_FALSE(get_pages(memory.data() + 3 * memory.page(), 1));
}

TEST_CASE("a pool in a full file system throws where it would have ended the process [pages]") {
  auto const memory = std::make_shared<Sparse>(8, 4);
  Pool pool(memory, memory->data(), memory->bytes());
  auto* const piece = static_cast<std::byte*>(pool.take(3 * memory->page(), 64));
  piece[3 * memory->page() - 1] = std::byte{1};
  std::string const message =
      refusal([&] { pool.take(2 * memory->page(), 64); }, zero::ErrorKind::resource);
  CHECK(message.find("/dev/shm, is full") != std::string::npos);
  CHECK(message.find(std::to_string(2 * memory->page()) + " bytes") != std::string::npos);
  // The refused piece is not taken.
  CHECK(pool.pieces() == 1);
  CHECK(pool.take(memory->page(), 64) == piece + 3 * memory->page());
}

#endif

}  // namespace
}  // namespace memory_test
