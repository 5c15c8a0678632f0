#include "zero/comm/mpi/pages.hpp"

#include "zero/base/error.hpp"
#include "zero/comm/mpi/pool.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <string>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>

namespace pages_test {
namespace {

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

TEST_CASE("pages that are to be had are there; of those that are not one is told") {
  Sparse const memory(4, 2);
  CHECK(get_pages(memory.data(), 2 * memory.page()));
  CHECK(get_pages(memory.data() + 100, 8));
  CHECK(get_pages(memory.data() + memory.page() - 1, 2));
  CHECK_FALSE(get_pages(memory.data() + 2 * memory.page() - 1, 2));
  CHECK_FALSE(get_pages(memory.data() + 3 * memory.page(), 1));
}

TEST_CASE("a pool in a full file system throws where it would have ended the process") {
  auto const memory = std::make_shared<Sparse>(8, 4);
  zero::mpi::detail::Pool pool(memory, memory->data(), memory->bytes());
  auto* const piece = static_cast<std::byte*>(pool.take(3 * memory->page(), 64));
  piece[3 * memory->page() - 1] = std::byte{1};
  std::string message;
  try {
    pool.take(2 * memory->page(), 64);
  } catch (zero::Error const& error) {
    CHECK(error.kind() == zero::ErrorKind::resource);
    message = error.what();
  }
  CHECK(message.find("/dev/shm, is full") != std::string::npos);
  CHECK(message.find(std::to_string(2 * memory->page()) + " bytes") != std::string::npos);
  // The refused piece is not taken.
  CHECK(pool.pieces() == 1);
  CHECK(pool.take(memory->page(), 64) == piece + 3 * memory->page());
}

}  // namespace
}  // namespace pages_test
#endif
