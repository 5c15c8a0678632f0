#include <zero/kernel/copy.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <vector>

namespace copy_test {
namespace {

using zero::kernel::Store;

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 31 + i / 256 + 1); }

TEST_CASE("copy: every byte and none beside it, at any alignment") {
  constexpr std::byte canary{0xa5};
  for (Store const store : {Store::automatic, Store::cached, Store::streaming}) {
    for (std::size_t const bytes :
         {0u, 1u, 15u, 16u, 63u, 64u, 65u, 127u, 128u, 200u, 1000u, 4099u}) {
      for (std::size_t const to_offset : {0u, 1u, 2u, 15u, 16u, 33u, 63u}) {
        for (std::size_t const from_offset : {0u, 1u, 8u, 61u}) {
          std::vector<std::byte> from(bytes + 128);
          for (std::size_t i = 0; i < from.size(); ++i) from[i] = pattern(i);
          std::vector<std::byte> to(bytes + 192, canary);
          zero::kernel::copy(to.data() + to_offset, from.data() + from_offset, bytes, store);
          bool right = true;
          for (std::size_t i = 0; i < to.size(); ++i) {
            bool const inside = i >= to_offset && i < to_offset + bytes;
            right = right && to[i] == (inside ? pattern(from_offset + i - to_offset) : canary);
          }
          CHECK_MESSAGE(right, bytes, " bytes from +", from_offset, " to +", to_offset);
        }
      }
    }
  }
}

TEST_CASE("copy: a little further within a page than the source, where it goes piece by piece") {
  constexpr std::size_t page = 4096;
  for (std::size_t const bytes : {1u, 1023u, 1024u, 1025u, 2048u, 4099u}) {
    for (std::size_t const behind : {1u, 16u, 31u, 32u}) {
      std::vector<std::byte> memory(4 * page);
      for (std::size_t i = 0; i < bytes + 1; ++i) memory[i] = pattern(i);
      std::byte* const to = memory.data() + 2 * page + behind;
      zero::kernel::copy(to, memory.data(), bytes, Store::cached);
      CHECK(std::memcmp(to, memory.data(), bytes) == 0);
      CHECK(to[bytes] == std::byte{0});
    }
  }
}

TEST_CASE("copy: results from streaming_bytes on are right as well") {
  std::vector<std::byte> from(zero::kernel::streaming_bytes + 77);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = pattern(i);
  std::vector<std::byte> to(from.size() + 3);
  zero::kernel::copy(to.data() + 3, from.data(), from.size());
  CHECK(std::memcmp(to.data() + 3, from.data(), from.size()) == 0);
}

TEST_CASE("copy: onto itself and of nothing") {
  std::byte one{7};
  zero::kernel::copy(&one, &one, 1);
  CHECK(one == std::byte{7});
  zero::kernel::copy(nullptr, nullptr, 0, Store::streaming);
}

TEST_CASE("is_streaming: automatic goes by size") {
  CHECK_FALSE(zero::kernel::is_streaming(Store::automatic, zero::kernel::streaming_bytes - 1));
  CHECK(zero::kernel::is_streaming(Store::automatic, zero::kernel::streaming_bytes));
  CHECK(zero::kernel::is_streaming(Store::streaming, 1));
  CHECK_FALSE(zero::kernel::is_streaming(Store::cached, std::size_t{1} << 40));
}

}  // namespace
}  // namespace copy_test
