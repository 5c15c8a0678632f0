/// What moves or zeroes bytes: copies, clears, and asks for memory ahead.
#include "support/test.hpp"
#include <zero/kernel/cache_prefetch.hpp>
#include <zero/kernel/clear.hpp>
#include <zero/kernel/copy.hpp>

namespace copy_test {
namespace {

using zero::kernel::Store;
using zero::kernel::streaming_bytes;

constexpr std::byte canary{0xa5};
constexpr Store stores[] = {Store::automatic, Store::cached, Store::streaming};

std::byte pattern(std::size_t i) { return static_cast<std::byte>(i * 31 + i / 256 + 1); }

std::vector<std::byte> patterned(std::size_t bytes) {
  std::vector<std::byte> result(bytes);
  for (std::size_t i = 0; i < bytes; ++i) result[i] = pattern(i);
  return result;
}

/// Is [first, first + bytes) of `memory` what `expected(i)` says, and the rest untouched?
template <class Expected>
bool holds(std::vector<std::byte> const& memory,
           std::size_t first,
           std::size_t bytes,
           Expected const& expected) {
  bool right = true;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    bool const inside = i >= first && i < first + bytes;
    right = right && memory[i] == (inside ? expected(i - first) : canary);
  }
  return right;
}

TEST_CASE("copy and clear: every byte and none beside it, at any alignment") {
  for (Store const store : stores) {
    for (std::size_t const bytes :
         {0u, 1u, 15u, 16u, 63u, 64u, 65u, 127u, 128u, 129u, 200u, 1000u, 4096u, 4099u}) {
      CAPTURE(bytes);
      for (std::size_t const to : {0u, 1u, 2u, 15u, 16u, 33u, 63u}) {
        for (std::size_t const from : {0u, 1u, 8u, 61u}) {
          std::vector<std::byte> const source = patterned(bytes + 128);
          std::vector<std::byte> memory(bytes + 192, canary);
          zero::kernel::copy(memory.data() + to, source.data() + from, bytes, store);
          CHECK_MESSAGE(holds(memory, to, bytes, [&](auto i) { return pattern(from + i); }),
                        " from +",
                        from,
                        " to +",
                        to);
        }
      }
      for (std::size_t offset = 0; offset < 65; offset += 3) {
        std::vector<std::byte> memory(bytes + 256, canary);
        zero::kernel::clear(memory.data() + 64 + offset, bytes, store);
        CHECK(holds(memory, 64 + offset, bytes, [](auto) { return std::byte{0}; }));
      }
    }
  }
}

TEST_CASE("copy: a little further within a page than the source, where it goes piece by piece") {
  constexpr std::size_t page = 4096;
  for (std::size_t const bytes : {1u, 1023u, 1024u, 1025u, 2048u, 4099u}) {
    for (std::size_t const behind : {1u, 16u, 31u, 32u}) {
      std::vector<std::byte> memory = patterned(bytes + 1);
      memory.resize(4 * page);
      std::byte* const to = memory.data() + 2 * page + behind;
      zero::kernel::copy(to, memory.data(), bytes, Store::cached);
      CHECK(std::memcmp(to, memory.data(), bytes) == 0);
      CHECK(to[bytes] == std::byte{0});
    }
  }
}

TEST_CASE("copy and clear: large buffers") {
  auto const from = patterned(streaming_bytes + 77);
  std::vector<std::byte> to(from.size() + 3);
  zero::kernel::copy(to.data() + 3, from.data(), from.size());
  CHECK(std::memcmp(to.data() + 3, from.data(), from.size()) == 0);
  zero::kernel::clear(to.data(), to.size());
  CHECK((to == std::vector<std::byte>(to.size())));
}

TEST_CASE("copy: onto itself and of nothing") {
  std::byte one{7};
  zero::kernel::copy(&one, &one, 1);
  CHECK(one == std::byte{7});
  zero::kernel::copy(nullptr, nullptr, 0, Store::streaming);
}

TEST_CASE("is_streaming: automatic goes by size") {
  CHECK_FALSE(zero::kernel::is_streaming(Store::automatic, streaming_bytes - 1));
  CHECK(zero::kernel::is_streaming(Store::automatic, streaming_bytes));
  CHECK(zero::kernel::is_streaming(Store::streaming, 1));
  CHECK_FALSE(zero::kernel::is_streaming(Store::cached, std::size_t{1} << 40));
}

TEST_CASE("prefetch: memory may be asked for beyond an array, and nowhere") {
  auto const one = std::make_unique<float>(1.f);
  zero::kernel::detail::prefetch<1024>(one.get());
  zero::kernel::detail::prefetch<std::size_t{1} << 40>(one.get());
  zero::kernel::detail::prefetch<0>(nullptr);
  CHECK(*one == 1.f);
}

}  // namespace
}  // namespace copy_test
