#include "zero/kernel/clear.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

namespace clear_test {
namespace {

TEST_CASE("clear zeroes exactly the bytes it was given, at any alignment") {
  using zero::kernel::Store;
  for (Store const store : {Store::automatic, Store::cached, Store::streaming}) {
    for (std::size_t const bytes : {0u, 1u, 15u, 63u, 64u, 65u, 127u, 128u, 129u, 1000u, 4096u}) {
      for (std::size_t offset = 0; offset < 65; offset += 3) {
        std::vector<unsigned char> memory(bytes + 256, 0xab);
        zero::kernel::clear(memory.data() + 64 + offset, bytes, store);
        bool right = true;
        for (std::size_t i = 0; i < memory.size(); ++i) {
          bool const inside = i >= 64 + offset && i < 64 + offset + bytes;
          right = right && memory[i] == (inside ? 0 : 0xab);
        }
        CHECK(right);
      }
    }
  }
}

TEST_CASE("clear of a large buffer") {
  std::vector<unsigned char> memory(zero::kernel::streaming_bytes + 77, 1);
  zero::kernel::clear(memory.data(), memory.size());
  CHECK(memory == std::vector<unsigned char>(memory.size(), 0));
}

}  // namespace
}  // namespace clear_test
