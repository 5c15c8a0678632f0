/// @file
/// The memory of a space of any type, and where it is from, as the engine calls them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"

#include <cstddef>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The functions of one type of space that need no kernel.
struct SpaceCalls {
  bool host_accessible;  ///< may any thread follow its pointers?
  void (*zero)(void const* space, void* memory, std::size_t bytes);
  void (*copy)(void const* space, void* to, void const* from, std::size_t bytes);
  void (*upload)(void const* space, void* to, void const* host, std::size_t bytes);
  void (*download)(void const* space, void* host, void const* from, std::size_t bytes);
  bool (*capturing)(void const* space);  ///< null: it cannot be recorded
};

/// A space of any type, which outlives it.
class AnySpace {
 public:
  AnySpace(SpaceCalls const& calls, void const* space) noexcept : calls_(&calls), space_(space) {}

  [[nodiscard]] bool host_accessible() const noexcept { return calls_->host_accessible; }
  void zero(void* memory, std::size_t bytes) const { calls_->zero(space_, memory, bytes); }
  void copy(void* to, void const* from, std::size_t bytes) const {
    calls_->copy(space_, to, from, bytes);
  }
  void upload(void* to, void const* host, std::size_t bytes) const {
    calls_->upload(space_, to, host, bytes);
  }
  void download(void* host, void const* from, std::size_t bytes) const {
    calls_->download(space_, host, from, bytes);
  }
  [[nodiscard]] bool capturing() const {
    return calls_->capturing != nullptr && calls_->capturing(space_);
  }

 private:
  SpaceCalls const* calls_;
  void const* space_;
};

/// The functions of one type of allocator.
struct AllocatorCalls {
  void* (*allocate)(void* allocator, std::size_t bytes, std::size_t alignment, Role role);
  void (*deallocate)(void* allocator, void* memory, std::size_t bytes, std::size_t alignment);
};

/// An allocator of any type, which outlives it, and its calls.
struct AllocatorRef {
  AllocatorCalls const* calls = nullptr;
  void* allocator = nullptr;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
