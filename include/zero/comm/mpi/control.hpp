/// @file
/// What the ranks of one node tell each other through shared memory.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free,
              "zero: counters in shared memory must work between processes");
static_assert(std::atomic<std::uint32_t>::is_always_lock_free,
              "zero: flags in shared memory must work between processes");

/// No rank makes as many calls.
inline constexpr std::uint64_t never = ~std::uint64_t{0};

/// Where a buffer lies that is neither in the sender's pool nor in its control block.
inline constexpr std::int64_t outside = -1;
/// A send buffer that was copied into the control block.
inline constexpr std::int64_t inlined = -2;

/// One rank's part of a collective under way. Its owner writes it; `Control::posted` publishes the
/// call, the places of its buffers and `copy`. The counters grow with the number, so that a slot
/// can be used again.
struct CallSlot {
  Call call{};
  std::int64_t send_at = outside;  ///< offset in the sender's pool
  std::int64_t recv_at = outside;
  std::atomic<std::uint64_t> published{0};  ///< passes whose results peers may read here
  std::atomic<std::uint64_t> done{0};  ///< number + 1: this rank reads no peer's memory any more
  alignas(64) std::byte copy[inline_bytes];

  /// Lets peers read what the first `passes` passes of a collective have left in the result.
  void publish(std::uint64_t number, int passes) noexcept {
    published.store(stamp(number, passes), std::memory_order_release);
  }
  [[nodiscard]] bool has_published(std::uint64_t number, int passes) const noexcept {
    return published.load(std::memory_order_acquire) >= stamp(number, passes);
  }

 private:
  [[nodiscard]] static constexpr std::uint64_t stamp(std::uint64_t number, int passes) noexcept {
    return (number + 1) * 4 + static_cast<std::uint64_t>(passes);
  }
};

/// One rank's control block. Written by its owner only, but for `given_up`, which counts in that of
/// the node's first rank in the family's first group.
struct alignas(64) Control {
  static constexpr std::uint64_t present = 0x7a65726f2d6d7069;

  std::atomic<std::uint64_t> magic{present};
  std::atomic<std::uint32_t> given_up{0};     ///< some rank's buffers are its own again, too early
  std::atomic<std::uint64_t> left_at{never};  ///< calls made by a rank that will make no more
  std::atomic<std::uint32_t> left_unwinding{0};      ///< an exception was on its way
  alignas(64) std::atomic<std::uint64_t> posted{0};  ///< calls made
  CallSlot slots[ring_slots];

  [[nodiscard]] CallSlot& slot(std::uint64_t number) noexcept {
    return slots[static_cast<std::size_t>(number % ring_slots)];
  }
  /// A rank uses its buffers for something else before a collective is done: a failure will follow.
  void give_up() noexcept { given_up.store(1, std::memory_order_release); }
  /// True if all that was read of other ranks' buffers until now is what they gave.
  [[nodiscard]] bool is_sound() const noexcept {
    // What was read comes before the look at the flag.
    std::atomic_thread_fence(std::memory_order_acquire);
    return given_up.load(std::memory_order_relaxed) == 0;
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
