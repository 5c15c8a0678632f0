/// @file
/// Chunks between two ranks of a node, through memory that both see.
#pragma once

#include "zero/base/config.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Chunks that may be on their way from one rank to another.
inline constexpr std::size_t chunks_under_way = 2;

/// How many chunks one rank has put into its window for one peer, and how many that peer has used.
/// The chunks lie beside it and take turns.
struct alignas(64) Lane {
  std::atomic<std::uint64_t> sent{0};
  alignas(64) std::atomic<std::uint64_t> taken{0};  ///< written by the peer

  /// Which chunk the sender may fill, or -1 while the peer has used none.
  [[nodiscard]] int room() const noexcept {
    std::uint64_t const next = sent.load(std::memory_order_relaxed);
    bool const full = next - taken.load(std::memory_order_acquire) == chunks_under_way;
    return full ? -1 : static_cast<int>(next % chunks_under_way);
  }
  void send() noexcept { count(sent); }
  /// Which chunk the peer may read, or -1 while there is none.
  [[nodiscard]] int arrived() const noexcept {
    std::uint64_t const next = taken.load(std::memory_order_relaxed);
    bool const none = next == sent.load(std::memory_order_acquire);
    return none ? -1 : static_cast<int>(next % chunks_under_way);
  }
  void take() noexcept { count(taken); }

 private:
  static void count(std::atomic<std::uint64_t>& own) noexcept {
    own.store(own.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
