#include "zero/transfer/file/temporary_file.hpp"

#include "checkpoint/temporary_directory.hpp"
#include "support/test.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace temporary_file_test {
namespace {

namespace detail = zero::detail;

TEST_CASE("room is taken with zeros where the system has no call for it") {
  checkpoint_tests::TemporaryDirectory const directory;
  int const file = detail::open_temporary(directory.path());
  REQUIRE(file >= 0);
  CHECK(std::filesystem::is_empty(directory.path()));
  constexpr std::size_t bytes = 200001;
  CHECK(detail::write_zeros(file, bytes) == 0);
  struct stat about {};
  REQUIRE(::fstat(file, &about) == 0);
  CHECK(about.st_size == bytes);
  CHECK(about.st_blocks * 512 >= about.st_size);
  std::array<std::byte, 3> last{std::byte{1}, std::byte{1}, std::byte{1}};
  CHECK(detail::move_bytes(file, bytes - last.size(), last.data(), last.size(), false) == 0);
  CHECK(last == std::array<std::byte, 3>{});
  CHECK(detail::move_bytes(file, bytes, last.data(), 1, false) == EIO);
  ::close(file);
}

TEST_CASE("a file system that is full says so, whatever takes its room") {
  int const full = ::open("/dev/full", O_RDWR | O_CLOEXEC);
  REQUIRE(full >= 0);
  CHECK(detail::write_zeros(full, 1) == ENOSPC);
  CHECK(detail::write_zeros(full, 0) == 0);
  ::close(full);
}

}  // namespace
}  // namespace temporary_file_test
