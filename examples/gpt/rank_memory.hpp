/// @file
/// Where a rank's memory is from, and how much it may be.
#pragma once

#include "zero/concepts/allocator.hpp"
#include "zero/memory.hpp"

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace gpt {

/// An allocator for all that a rank holds: optimizer, activation checkpoints, and what the model
/// computes with. Copies stand for the same memory.
/// @tparam Otherwise  where memory is from
template <zero::Allocator Otherwise = zero::HostAllocator>
class RankMemory {
 public:
  /// @param budget  bytes to take now, of which everything is handed out; 0: whatever is asked for
  explicit RankMemory(std::uint64_t budget, Otherwise otherwise = {})
      : otherwise_(std::move(otherwise)) {
    if (budget > 0) reservation_.emplace(budget, otherwise_);
  }

  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment, zero::Role role) {
    return reservation_ ? reservation_->allocate(bytes, alignment, role)
                        : otherwise_.allocate(bytes, alignment);
  }
  [[nodiscard]] void* allocate(std::size_t bytes, std::size_t alignment) {
    return reservation_ ? reservation_->allocate(bytes, alignment)
                        : otherwise_.allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) {
    if (reservation_) return reservation_->deallocate(memory, bytes, alignment);
    otherwise_.deallocate(memory, bytes, alignment);
  }

  /// Bytes of the smallest budget that would have been enough; 0 without one.
  [[nodiscard]] std::uint64_t needed() const {
    return reservation_ ? reservation_->statistics().needed_bytes : 0;
  }

 private:
  Otherwise otherwise_;
  std::optional<zero::ContiguousMemory> reservation_;
};

/// The part of it that the model computes with: short-lived, beside the library's pools.
template <class Allocator>
class Workspace final : public std::pmr::memory_resource {
 public:
  explicit Workspace(Allocator allocator) : allocator_(std::move(allocator)) {}

  /// Bytes in use.
  [[nodiscard]] std::uint64_t held() const noexcept { return held_; }
  [[nodiscard]] Allocator const& allocator() const noexcept { return allocator_; }

 private:
  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    void* const memory = allocator_.allocate(bytes, alignment, zero::Role::activation_pool);
    if (memory == nullptr) {
      throw std::runtime_error("no room for the " + std::to_string(bytes) +
                               " bytes that the model computes with");
    }
    held_ += bytes;
    return memory;
  }
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment) override {
    allocator_.deallocate(memory, bytes, alignment);
    held_ -= bytes;
  }
  [[nodiscard]] bool do_is_equal(std::pmr::memory_resource const& other) const noexcept override {
    return this == &other;
  }

  Allocator allocator_;
  std::uint64_t held_ = 0;
};

}  // namespace gpt
