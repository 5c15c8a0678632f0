/// @file
/// The library's own memory: taken once, accounted by role, given back by the destructor.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/error.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/layout/memory_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zero::inline v0_1::detail {

/// Owns blocks of zeroed memory and remembers what each is for.
template <Allocator A, class Space>
class Arena {
 public:
  /// Cache lines, vector loads and NCCL windows are all content with pages.
  static constexpr std::size_t alignment = 4096;

  explicit Arena(A allocator) : allocator_(std::move(allocator)) {}
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

  [[nodiscard]] MemoryBytes const& held() const noexcept { return held_; }

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
  };

  __attribute__((noinline)) void* take_bytes(Role role, std::size_t bytes) {
    blocks_.reserve(blocks_.size() + 1);
    void* const memory = obtain(role, bytes);
    blocks_.push_back({memory, bytes});
    held_[role] += bytes;
    Space::zero(memory, bytes);
    return memory;
  }

  void* obtain(Role role, std::size_t bytes) {
    void* memory = nullptr;
#if defined(__cpp_exceptions)
    try {
      memory = allocator_.allocate(bytes, alignment);
    } catch (std::bad_alloc const&) {
      memory = nullptr;
    }
#else
    memory = allocator_.allocate(bytes, alignment);
#endif
    if (memory == nullptr) {
      fail(ErrorKind::resource, {"cannot allocate ", bytes, " bytes for ", name(role)});
    }
    return memory;
  }

  [[no_unique_address]] A allocator_;
  std::vector<Block> blocks_;
  MemoryBytes held_;
};

}  // namespace zero::inline v0_1::detail
