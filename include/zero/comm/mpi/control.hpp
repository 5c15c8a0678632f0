/// @file
/// What the ranks of one node tell each other through shared memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/mpi/summary.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "zero: counters in shared memory must work between processes");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "zero: flags in shared memory must work between processes");

/// No rank makes as many calls.
inline constexpr std::uint64_t never = ~std::uint64_t{0};

/// One rank's part of a collective under way. Its owner writes it; `Control::posted` publishes
/// `call` and `copy`. The counters grow with the sequence, so that a slot can be used again.
struct Slot {
  Call call{};
  std::atomic<std::uint64_t> passed{0};  ///< passes whose results peers may read here
  std::atomic<std::uint64_t> done{0};  ///< sequence + 1: this rank reads no peer's memory any more
  std::atomic<std::uint64_t> summed{0};  ///< sequence + 1 once `summary` is there
  Summary summary{};                     ///< of all ranks' calls; a leader's, over several nodes
  alignas(64) std::byte copy[inline_bytes];

  /// Lets peers read what the first `passes` passes of a collective have left in the result.
  void pass(std::uint64_t sequence, int passes) noexcept {
    passed.store(stamp(sequence, passes), std::memory_order_release);
  }
  [[nodiscard]] bool has_passed(std::uint64_t sequence, int passes) const noexcept {
    return passed.load(std::memory_order_acquire) >= stamp(sequence, passes);
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t stamp(std::uint64_t sequence, int passes) noexcept {
    return (sequence + 1) * 4 + static_cast<std::uint64_t>(passes);
  }
};

/// Whether a family of groups can go on, and why not; the first failure of a node stays.
class Board {
 public:
  static constexpr std::size_t text_bytes = 1024;

  /// True if this failure is the first.
  bool record(std::string_view text) noexcept {
    std::uint32_t empty = 0;
    if (!state_.compare_exchange_strong(empty, writing, std::memory_order_acq_rel)) return false;
    length_ = static_cast<std::uint32_t>((std::min)(text.size(), text_bytes));
    std::memcpy(text_, text.data(), length_);
    state_.store(written, std::memory_order_release);
    return true;
  }
  [[nodiscard]] bool failed() const noexcept {
    return state_.load(std::memory_order_acquire) == written;
  }
  /// A rank's buffers are its own again before a collective is done: a failure will follow.
  void withdraw() noexcept { withdrawn_.store(1, std::memory_order_release); }
  /// True if all that was read of other ranks' buffers until now is what they gave. What goes wrong
  /// is written here before any buffer is used for something else.
  [[nodiscard]] bool is_sound() const noexcept {
    // What was read comes before the look at the flags.
    std::atomic_thread_fence(std::memory_order_acquire);
    return state_.load(std::memory_order_relaxed) == 0 &&
           withdrawn_.load(std::memory_order_relaxed) == 0;
  }
  /// The failure, once there is one.
  [[nodiscard]] std::string text() const { return {text_, length_}; }

 private:
  static constexpr std::uint32_t writing = 1;
  static constexpr std::uint32_t written = 2;
  std::atomic<std::uint32_t> state_{0};
  std::atomic<std::uint32_t> withdrawn_{0};
  std::uint32_t length_ = 0;
  char text_[text_bytes];
};

/// One rank's control block. Written by its owner only, but for the board, which is the one of the
/// node's first rank.
struct alignas(64) Control {
  static constexpr std::uint64_t present = 0x7a65726f2d6d7069;

  std::atomic<std::uint64_t> magic{present};
  std::atomic<std::uint64_t> left_at{never};  ///< calls made by a rank that will make no more
  std::atomic<std::uint32_t> left_unwinding{0};
  std::atomic<std::uint32_t> waiting{0};  ///< for others, in any group; of the family's window
  alignas(64) std::atomic<std::uint64_t> posted{0};  ///< calls made
  alignas(64) Board board{};
  Slot slots[ring_slots];

  [[nodiscard]] Slot& slot(std::uint64_t sequence) noexcept {
    return slots[static_cast<std::size_t>(sequence % ring_slots)];
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
