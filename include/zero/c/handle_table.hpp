/// @file
/// What handles of the C interface lead to. A handle is a number, and no address: one that has
/// ended, is of another kind or was never handed out is found out without following it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::c {

/// What a handle is of.
enum class HandleKind : std::uint8_t { none, comm, optimizer, checkpoints };

/// What a handle leads to.
struct HandleTarget {
  HandleKind kind = HandleKind::none;  ///< what it was made for; none if it never was
  void* object = nullptr;              ///< null once it has ended
  void const* comm = nullptr;          ///< the handle of its communicator
};

/// All handles of the program, the one thing that is global in the C interface. Any thread may use
/// it at any time.
class HandleTable {
 public:
  /// A handle for an object.
  /// @throws Error (resource) for more of them at once than there are numbers, a million
  [[nodiscard]] void* add(HandleKind kind, void* object, void const* comm) {
    std::lock_guard const lock(mutex_);
    std::size_t index = slots_.size();
    if (free_.empty()) {
      if (index > most_index) fail(ErrorKind::resource, "there are too many handles");
      slots_.emplace_back();
      free_.reserve(slots_.capacity());  // so that `end` need not allocate
    } else {
      index = free_.back();
      free_.pop_back();
    }
    HandleSlot& slot = slots_[index];
    ++slot.generation;
    slot.target = {kind, object, comm};
    // Odd, as no address of an object is.
    return reinterpret_cast<void*>(slot.generation << generation_shift | index << 1 | 1);
  }
  /// What a handle leads to.
  [[nodiscard]] HandleTarget find(void const* handle) noexcept {
    std::lock_guard const lock(mutex_);
    HandleSlot const* const slot = slot_of(handle);
    return slot != nullptr ? slot->target : HandleTarget{};
  }
  /// The handle leads nowhere from now on.
  void end(void const* handle) noexcept {
    std::lock_guard const lock(mutex_);
    HandleSlot* const slot = slot_of(handle);
    if (slot == nullptr || slot->target.object == nullptr) return;
    slot->target.object = nullptr;
    if (slot->generation < last_generation) free_.push_back(slot_index(handle));
  }

 private:
  struct HandleSlot {
    std::uintptr_t generation = 0;
    HandleTarget target{};
  };
  static constexpr int generation_shift = 21;
  static constexpr std::uintptr_t most_index = (std::uintptr_t{1} << (generation_shift - 1)) - 1;
  static constexpr std::uintptr_t last_generation = ~std::uintptr_t{0} >> generation_shift;

  [[nodiscard]] static std::size_t slot_index(void const* handle) noexcept {
    auto const number = reinterpret_cast<std::uintptr_t>(handle);
    return (number >> 1) & most_index;
  }
  [[nodiscard]] HandleSlot* slot_of(void const* handle) noexcept {
    auto const number = reinterpret_cast<std::uintptr_t>(handle);
    std::size_t const index = slot_index(handle);
    if ((number & 1) == 0 || index >= slots_.size()) return nullptr;
    HandleSlot& slot = slots_[index];
    return slot.generation == number >> generation_shift ? &slot : nullptr;
  }

  std::mutex mutex_;
  std::vector<HandleSlot> slots_;
  std::vector<std::size_t> free_;
};

/// The program's.
[[nodiscard]] inline HandleTable& handles() {
  static HandleTable table;
  return table;
}

}  // namespace zero::inline ZERO_NAMESPACE::c
