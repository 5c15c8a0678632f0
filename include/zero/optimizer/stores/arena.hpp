/// @file
/// The library's own memory: taken once, accounted by role, given back by the destructor.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/concepts/space.hpp"
#include "zero/layout/memory_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Owns blocks of a space's memory, zeroed, and remembers what each is for.
template <Allocator A, MemorySpace Space>
class Arena {
 public:
  /// Cache lines, vector loads and NCCL windows are all content with pages.
  static constexpr std::size_t alignment = 4096;

  /// Memory that is given back at the end of a scope, and is not accounted: not part of the plan.
  class Scratch {
   public:
    Scratch(Arena& arena, std::size_t bytes, Role role = Role::control)
        : arena_(&arena), memory_(arena.obtain(role, bytes)), bytes_(bytes) {}
    Scratch(Scratch const&) = delete;
    Scratch& operator=(Scratch const&) = delete;
    ~Scratch() { arena_->allocator_.deallocate(memory_, bytes_, alignment); }
    [[nodiscard]] void* data() const noexcept { return memory_; }

   private:
    Arena* arena_;
    void* memory_;
    std::size_t bytes_;
  };

  Arena(A allocator, Space space) : allocator_(std::move(allocator)), space_(std::move(space)) {}
  Arena(Arena const&) = delete;
  Arena& operator=(Arena const&) = delete;
  ~Arena() {
    for (Block const& block : blocks_) allocator_.deallocate(block.memory, block.bytes, alignment);
  }

  /// Zeroed memory for `count` elements.
  /// @throws Error (resource) if the allocator refuses, naming role and bytes
  template <class T>
  [[nodiscard]] std::span<T> take(Role role, std::uint64_t count) {
    auto const bytes = static_cast<std::size_t>(checked_mul(count, sizeof(T)));
    if (bytes == 0) return {};
    return {static_cast<T*>(take_bytes(role, bytes)), static_cast<std::size_t>(count)};
  }

  [[nodiscard]] Space const& space() const noexcept { return space_; }
  [[nodiscard]] MemoryBytes const& held() const noexcept { return held_; }

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
  };

  ZERO_COLD void* take_bytes(Role role, std::size_t bytes) {
    blocks_.reserve(blocks_.size() + 1);
    void* const memory = obtain(role, bytes);
    blocks_.push_back({memory, bytes});
    held_[role] += bytes;
    space_.zero(memory, bytes);
    return memory;
  }

  void* obtain(Role role, std::size_t bytes) {
    void* memory = nullptr;
#if defined(__cpp_exceptions)
    try {
      memory = ask(role, bytes);
    } catch (std::bad_alloc const&) {
      memory = nullptr;
    }
#else
    memory = ask(role, bytes);
#endif
    if (memory == nullptr) {
      fail(ErrorKind::resource, {"cannot allocate ", bytes, " bytes for ", name(role)});
    }
    return memory;
  }
  void* ask(Role role, std::size_t bytes) {
    if constexpr (RoleAllocator<A>) {
      return allocator_.allocate(bytes, alignment, role);
    } else {
      return allocator_.allocate(bytes, alignment);
    }
  }

  [[no_unique_address]] A allocator_;
  [[no_unique_address]] Space space_;
  std::vector<Block> blocks_;
  MemoryBytes held_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
