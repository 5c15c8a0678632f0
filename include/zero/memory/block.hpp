/// @file
/// A block of a reservation that its owner gives back by going out of scope.
#pragma once

#include "zero/base/config.hpp"
#include "zero/memory/manager.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE {

/// Memory from `ContiguousMemory::long_lived` or `short_lived`, given back by the destructor. It
/// keeps the reservation alive.
/// @par Errors  Where guards find that somebody has written outside of the block, its destructor
///   and assignments end the program with the sentence: `std::terminate` of an Error.
class MemoryBlock {
 public:
  /// No memory.
  MemoryBlock() noexcept = default;
  /// Takes the memory over; `other` has none afterwards.
  MemoryBlock(MemoryBlock&& other) noexcept
      : manager_(std::move(other.manager_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  /// Gives its own memory back, then takes over the other's.
  MemoryBlock& operator=(MemoryBlock&& other) noexcept {
    if (this == &other) return *this;
    release();
    manager_ = std::move(other.manager_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  ~MemoryBlock() { release(); }

  /// The first byte, or null; in the space of the reservation, not initialised.
  [[nodiscard]] void* data() const noexcept { return data_; }
  /// As asked for.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// As many elements as there is room for. They are in the space of the reservation: of host
  /// memory, anybody may follow the span.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {static_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  friend class ContiguousMemory;
  MemoryBlock(std::shared_ptr<detail::MemoryManager> manager, void* data, std::size_t bytes)
      : manager_(std::move(manager)), data_(data), bytes_(bytes) {}

  void release() {
    if (manager_ != nullptr) manager_->deallocate(data_, bytes_);
  }

  std::shared_ptr<detail::MemoryManager> manager_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE
