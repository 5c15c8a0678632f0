/// @file
/// A collective over separate address spaces as blocks that pairs of ranks exchange. Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/call.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/comm/shared/shares.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What one rank gives another in one pass of a collective, in elements.
struct Block {
  std::size_t from = 0;   ///< start in the source's buffer
  std::size_t to = 0;     ///< start in the target's receive buffer
  std::size_t count = 0;  ///< 0: nothing goes from this source to this target
  bool result = false;    ///< the source's buffer is its receive buffer: what an earlier pass left
};

/// True if every rank sums all of a small result by itself.
[[nodiscard]] constexpr bool is_small_sum(Collective const& op) noexcept {
  return op.op == Op::all_reduce && op.block_bytes() <= inline_bytes;
}

/// An all-reduce is a reduce-scatter of N shares and an all-gather of the results.
[[nodiscard]] constexpr int passes(Collective const& op) noexcept {
  return op.op == Op::all_reduce && !is_small_sum(op) ? 2 : 1;
}

/// True if a pass adds the sources, which then all give the same number of elements.
[[nodiscard]] constexpr bool is_sum(Collective const& op, int pass) noexcept {
  return pass == 0 && zero::detail::is_reduction(op.op);
}

/// What `source` gives `target`.
[[nodiscard]] constexpr Block block_between(
    Collective const& op, int pass, int source, int target, int size) noexcept {
  auto const s = static_cast<std::size_t>(source);
  auto const t = static_cast<std::size_t>(target);
  switch (op.op) {
    case Op::reduce_scatter: return {t * op.count, 0, op.count, false};
    case Op::all_gather: return {0, s * op.count, op.count, false};
    case Op::all_to_all: return {t * op.count, s * op.count, op.count, false};
    case Op::broadcast: return {0, 0, source == op.root ? op.count : 0, false};
    case Op::all_reduce: break;
  }
  if (passes(op) == 1) return {0, 0, op.count, false};
  int const share = pass == 0 ? target : source;
  std::size_t const begin = zero::detail::share_begin(op.count, share, size);
  std::size_t const count = zero::detail::share_begin(op.count, share + 1, size) - begin;
  // A rank's own share is where it belongs already.
  return {begin, begin, pass == 1 && source == target ? 0 : count, pass == 1};
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
