/// @file
/// What several ranks called, in few words. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/shared/call_checks.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// The calls of any set of ranks: as much as it takes to say whether they agree, and who differs if
/// not. Sets may overlap.
struct Summary {
  Call call{};                   ///< of the lowest rank
  Call other{};                  ///< of the lowest rank whose call differs from that
  std::int32_t rank = -1;        ///< the lowest; -1 for no ranks at all
  std::int32_t other_rank = -1;  ///< -1 if all agree
  bool sends_seen = true;        ///< on nodes of several ranks, do these see the send buffers?
  bool receives_seen = true;

  /// @param alone  the rank has its node for itself
  [[nodiscard]] static Summary of(int rank, Call const& call, bool alone) noexcept {
    Summary result{.call = call, .rank = rank};
    result.sends_seen = alone || call.send_at != outside;
    result.receives_seen = alone || call.recv_at != outside;
    return result;
  }

  void add(Summary const& more) noexcept {
    if (more.rank < 0) return;
    if (rank < 0) {
      *this = more;
      return;
    }
    Summary low = rank <= more.rank ? *this : more;
    Summary const& high = rank <= more.rank ? more : *this;
    bool const same = zero::detail::is_same_call(low.call.collective(), high.call.collective());
    std::int32_t const differs = same ? high.other_rank : high.rank;
    if (differs >= 0 && (low.other_rank < 0 || differs < low.other_rank)) {
      low.other = same ? high.other : high.call;
      low.other_rank = differs;
    }
    low.sends_seen = low.sends_seen && high.sends_seen;
    low.receives_seen = low.receives_seen && high.receives_seen;
    *this = low;
  }
};

/// Rounds after which each of `nodes` knows of all others, if in round k everybody tells whoever is
/// 2^k further on, around a circle.
[[nodiscard]] constexpr int rounds(std::size_t nodes) noexcept {
  return static_cast<int>(std::bit_width(nodes - 1));
}
/// The node that is told by `node` in a round.
[[nodiscard]] constexpr std::size_t told_in(int round,
                                            std::size_t node,
                                            std::size_t nodes) noexcept {
  return (node + (std::size_t{1} << round)) % nodes;
}
/// The node that tells `node` in a round. What it tells is of itself and of the 2^round - 1 nodes
/// before it, at least.
[[nodiscard]] constexpr std::size_t telling_in(int round,
                                               std::size_t node,
                                               std::size_t nodes) noexcept {
  return (node + nodes - (std::size_t{1} << round)) % nodes;
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
