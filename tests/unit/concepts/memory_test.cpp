#include "archetypes.hpp"
#include <zero/concepts/memory.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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
  for (std::size_t const alignment : {std::size_t{8}, std::size_t{64}, std::size_t{4096}}) {
    void* const memory = allocator.allocate(100, alignment);
    CHECK(reinterpret_cast<std::uintptr_t>(memory) % alignment == 0);
    allocator.deallocate(memory, 100, alignment);
  }
}

}  // namespace memory_test
