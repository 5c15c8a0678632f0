#include "archetypes.hpp"
#include <zero/concepts/memory.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <type_traits>
#include <vector>

namespace memory_test {
namespace {

using zero::Allocator;
using zero::Memory;

struct CannotBeCopied {
  CannotBeCopied() = default;
  CannotBeCopied(CannotBeCopied const&) = delete;
  void* allocate(std::size_t, std::size_t) { return nullptr; }
  void deallocate(void*, std::size_t, std::size_t) {}
};

struct WithoutAlignment {
  void* allocate(std::size_t) { return nullptr; }
  void deallocate(void*, std::size_t) {}
};

struct OfSomething {
  explicit OfSomething(int) {}
  void* allocate(std::size_t, std::size_t) { return nullptr; }
  void deallocate(void*, std::size_t, std::size_t) {}
};

struct Undecided {
  zero::HostAllocator allocator{};
};

struct WithoutAllocator {
  static constexpr bool borrowed = false;
};

}  // namespace

TEST_CASE("an allocator gives aligned memory, takes it back and can be copied") {
  static_assert(Allocator<archetype::Allocator>);
  static_assert(Allocator<zero::HostAllocator>);
  static_assert(!Allocator<CannotBeCopied>);
  static_assert(!Allocator<WithoutAlignment>);
  static_assert(!Allocator<int>);
  CHECK(Allocator<archetype::Allocator>);
}

TEST_CASE("memory says who owns it and where the library's own is from") {
  static_assert(Memory<archetype::Memory> && Memory<archetype::Lent>);
  static_assert(Memory<zero::Owned<>> && Memory<zero::Borrowed<>>);
  static_assert(Memory<zero::Owned<archetype::Allocator>>);
  static_assert(Memory<zero::Owned<OfSomething>> && Memory<zero::Borrowed<OfSomething>>);
  static_assert(!std::is_default_constructible_v<zero::Owned<OfSomething>>);
  static_assert(!std::is_default_constructible_v<zero::Borrowed<OfSomething>>);
  static_assert(std::is_default_constructible_v<zero::Owned<archetype::Allocator>> ==
                std::is_default_constructible_v<archetype::Allocator>);
  static_assert(!Memory<Undecided>);
  static_assert(!Memory<WithoutAllocator>);
  static_assert(!zero::Owned<>::borrowed && zero::Borrowed<>::borrowed);
  static_assert(std::is_empty_v<zero::Owned<>> && std::is_empty_v<zero::Borrowed<>>);
  static_assert(std::is_same_v<decltype(zero::Owned{archetype::Allocator{1}}),
                               zero::Owned<archetype::Allocator>>);
  static_assert(std::is_same_v<decltype(zero::Borrowed{archetype::Allocator{1}}),
                               zero::Borrowed<archetype::Allocator>>);
  CHECK(Memory<zero::Owned<>>);
}

TEST_CASE("the host allocator keeps to the alignment that is asked for") {
  zero::HostAllocator allocator;
  for (std::size_t const bytes : {std::size_t{100}, std::size_t{1} << 20}) {
    for (std::size_t alignment = 8; alignment <= std::size_t{1} << 21; alignment *= 2) {
      void* const memory = allocator.allocate(bytes, alignment);
      CHECK(reinterpret_cast<std::uintptr_t>(memory) % alignment == 0);
      std::memset(memory, 1, bytes);
      allocator.deallocate(memory, bytes, alignment);
    }
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The sanitizers end a program that asks for so much.
TEST_CASE("the host allocator refuses what would wrap around") {
  zero::HostAllocator allocator;
  std::size_t const volatile bytes = SIZE_MAX - 4096;
  CHECK_THROWS_AS(static_cast<void>(allocator.allocate(bytes, 64)), std::bad_alloc);
}
#endif

TEST_CASE("large blocks of a power of two do not lie about multiples of it apart") {
  zero::HostAllocator allocator;
  constexpr std::size_t bytes = std::size_t{1} << 26;
  std::vector<char*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(static_cast<char*>(allocator.allocate(bytes, 4096)));
  }
  std::sort(blocks.begin(), blocks.end());
  int close = 0;  // what lay in between by chance may make one so
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    if ((blocks[i] - blocks[i - 1]) % (2 << 20) <= 16 << 10) ++close;
  }
  CHECK(close <= 1);
  for (char* const block : blocks) allocator.deallocate(block, bytes, 4096);
}

}  // namespace memory_test
