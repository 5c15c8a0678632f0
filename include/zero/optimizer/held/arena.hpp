/// @file
/// The library's own memory: taken once, accounted by role, given back by the destructor.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/held/elements.hpp"
#include "zero/optimizer/tables/space_calls.hpp"

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Owns blocks of a space's memory, zeroed, and remembers what each is for.
class Arena {
 public:
  /// Cache lines, vector loads and NCCL windows are all content with pages.
  static constexpr std::size_t alignment = 4096;

  /// Memory that is given back at the end of a scope, and is not accounted: not part of the plan.
  class Scratch {
   public:
    ZERO_APART Scratch(Arena& arena, std::size_t bytes, Role role = Role::control)
        : arena_(&arena), memory_(arena.obtain(role, bytes)), bytes_(bytes) {}
    Scratch(Scratch const&) = delete;
    Scratch& operator=(Scratch const&) = delete;
    ~Scratch() { arena_->give_back(memory_, bytes_); }
    [[nodiscard]] void* data() const noexcept { return memory_; }

   private:
    Arena* arena_;
    void* memory_;
    std::size_t bytes_;
  };

  Arena(AllocatorRef allocator, AnySpace space) noexcept : allocator_(allocator), space_(space) {}
  Arena(Arena const&) = delete;
  Arena& operator=(Arena const&) = delete;
  ~Arena() {
    for (ArenaBlock const& block : blocks_) give_back(block.memory, block.bytes);
  }

  /// Zeroed memory; null where none is asked for.
  /// @throws Error (resource) if the allocator refuses, naming role and bytes
  ZERO_APART ZERO_COLD std::span<std::byte> take(Role role, std::uint64_t bytes);
  /// The same for so many elements.
  ZERO_APART [[nodiscard]] Array take(Role role,
                                      std::uint64_t count,
                                      DType dtype,
                                      Coding coding = Coding::values) {
    std::uint64_t const entries = entries_of(coding, count);
    return {take(role, checked_mul(entries, held_bytes(dtype, coding))).data(), dtype, coding};
  }

  [[nodiscard]] AnySpace const& space() const noexcept { return space_; }
  [[nodiscard]] MemoryBytes const& held() const noexcept { return held_; }

 private:
  struct ArenaBlock {
    void* memory;
    std::size_t bytes;
  };

  ZERO_APART ZERO_COLD void* obtain(Role role, std::size_t bytes);
  void give_back(void* memory, std::size_t bytes) const {
    allocator_.calls->deallocate(allocator_.allocator, memory, bytes, alignment);
  }

  AllocatorRef allocator_;
  AnySpace space_;
  std::vector<ArenaBlock> blocks_;
  MemoryBytes held_;
};

#if ZERO_BODIES

ZERO_BODY std::span<std::byte> Arena::take(Role role, std::uint64_t wanted) {
  auto const bytes = static_cast<std::size_t>(wanted);
  if (bytes == 0) return {};
  blocks_.reserve(blocks_.size() + 1);
  void* const memory = obtain(role, bytes);
  blocks_.push_back({memory, bytes});
  held_[role] += bytes;
  space_.zero(memory, bytes);
  return {static_cast<std::byte*>(memory), bytes};
}

ZERO_BODY void* Arena::obtain(Role role, std::size_t bytes) {
  void* memory = nullptr;
  auto const ask = [&] {
    return allocator_.calls->allocate(allocator_.allocator, bytes, alignment, role);
  };
#if defined(__cpp_exceptions)
  try {
    memory = ask();
  } catch (std::bad_alloc const&) {
    memory = nullptr;
  }
#else
  memory = ask();
#endif
  if (memory == nullptr) {
    fail(ErrorKind::resource, {"cannot allocate ", bytes, " bytes for ", name(role)});
  }
  return memory;
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::detail
