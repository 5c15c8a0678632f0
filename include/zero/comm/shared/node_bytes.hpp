/// @file
/// Bytes that a node sends to others for a sum or a gather over nodes, by how they go. Pure
/// arithmetic, for who plans traffic and for who routes it.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"

#include <algorithm>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Blocks up to so many bytes never go along a chain: there latency is all.
inline constexpr std::uint64_t unchained_bytes = 2048;

/// What a fast link carries while a message is on its way: 10 µs at 25 GB/s.
inline constexpr std::uint64_t hop_bytes = 256 * KiB;

/// Bytes of a partial sum that go along a chain at a time, so that its nodes start early and a
/// piece is worth a message.
[[nodiscard]] constexpr std::uint64_t chain_piece(std::uint64_t block) noexcept {
  return std::clamp<std::uint64_t>(block / 16, 32 * KiB, 256 * KiB);
}

/// One block for each rank of a group, as a node with some of the ranks sees it. Payload alone:
/// nothing of heads, or of what says which chunks were taken.
struct NodeBlocks {
  std::uint64_t ranks = 1;       ///< N, of the group
  std::uint64_t here = 1;        ///< R, of them on this node
  std::uint64_t nodes = 1;       ///< M
  std::uint64_t count = 0;       ///< elements of a block
  std::uint64_t element = 4;     ///< bytes, as blocks travel
  std::uint64_t accumulate = 4;  ///< bytes, as partial sums travel

  /// Of a block.
  [[nodiscard]] constexpr std::uint64_t block() const { return checked_mul(count, element); }
  /// A sum for which each rank sends every rank elsewhere its block: R (N-R) b.
  [[nodiscard]] constexpr std::uint64_t flat() const { return checked_mul(here, sums()); }
  /// A sum that passes from node to node in the accumulate dtype, and is rounded on the last one.
  /// @param last  is this the last node of the chain, which sends results instead?
  [[nodiscard]] constexpr std::uint64_t chained(bool last = false) const {
    if (nodes == 1) return 0;
    return last ? sums() : checked_mul(checked_mul(ranks, count), accumulate);
  }
  /// One block for every rank elsewhere: (N-R) b.
  [[nodiscard]] constexpr std::uint64_t sums() const { return checked_mul(ranks - here, block()); }
  /// A gather in which each block goes to every other node once: R (M-1) b.
  [[nodiscard]] constexpr std::uint64_t relayed() const {
    return checked_mul(checked_mul(here, nodes - 1), block());
  }
  /// Does a chain end before flat sums do? Counted in bytes: what a node sends, and what it could
  /// have sent until the last node has the first pieces.
  /// @param flat  what the node sends that would send most otherwise
  [[nodiscard]] constexpr bool chain_pays(std::uint64_t flat) const {
    if (nodes == 1 || block() <= unchained_bytes) return false;
    std::uint64_t const whole = checked_mul(count, accumulate);
    std::uint64_t const hop = hop_bytes + here * (std::min)(chain_piece(whole), whole);
    return chained() + (nodes - 1) * hop < flat;
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
