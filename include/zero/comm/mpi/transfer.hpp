/// @file
/// A collective over separate address spaces as transfers between pairs of ranks. Pure logic.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/error.hpp"
#include "zero/comm/call_checks.hpp"
#include "zero/concepts/communicator.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace zero::inline v0_1::mpi::detail {

/// Collectives a rank may have under way; `start` blocks when there would be more.
inline constexpr std::size_t ring_slots = 64;

/// Send buffers up to this size are copied into the control block, which peers read at once.
inline constexpr std::size_t inline_bytes = 2048;

/// Where a buffer lies that is neither in the sender's pool nor in its control block.
inline constexpr std::int64_t outside = -1;
/// A send buffer that was copied into the control block.
inline constexpr std::int64_t inlined = -2;

/// What a message of the header channel says.
enum class Notice : std::int32_t {
  call,            ///< the sender has started this collective
  left,            ///< the sender will start nothing more
  left_unwinding,  ///< the same, while an exception was on its way out
};

/// One rank's part of a collective as its peers see it: compared before data moves.
struct Call {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::int32_t op = 0;
  std::int32_t dtype = 0;
  std::int32_t accumulate = 0;
  std::int32_t root = 0;
  std::int32_t bucket = 0;
  Notice notice = Notice::call;
  std::int64_t send_at = outside;  ///< offset in the sender's pool
  std::int64_t recv_at = outside;

  [[nodiscard]] Collective collective() const noexcept {
    return {.op = static_cast<Op>(op),
            .dtype = static_cast<DType>(dtype),
            .accumulate = static_cast<DType>(accumulate),
            .count = static_cast<std::size_t>(count),
            .root = root,
            .bucket = bucket};
  }
};

[[nodiscard]] inline Call call_of(Collective const& op, std::uint64_t sequence) noexcept {
  return {.sequence = sequence,
          .count = op.count,
          .op = static_cast<std::int32_t>(op.op),
          .dtype = static_cast<std::int32_t>(op.dtype),
          .accumulate = static_cast<std::int32_t>(op.accumulate),
          .root = op.root,
          .bucket = op.bucket};
}

/// What one rank gives another in one pass of a collective, in elements.
struct Transfer {
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

/// Start of share `share` of an all-reduce; whole cache lines.
[[nodiscard]] constexpr std::size_t share_begin(std::size_t count, int share, int size) noexcept {
  auto const ranks = static_cast<std::size_t>(size);
  std::size_t const slice = ((count + ranks - 1) / ranks + 63) / 64 * 64;
  return std::min(count, slice * static_cast<std::size_t>(share));
}

/// What `source` gives `target`.
[[nodiscard]] constexpr Transfer transfer(
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
  std::size_t const begin = share_begin(op.count, share, size);
  std::size_t const count = share_begin(op.count, share + 1, size) - begin;
  // A rank's own share is where it belongs already.
  return {begin, begin, pass == 1 && source == target ? 0 : count, pass == 1};
}

/// The largest message this library hands to MPI: some implementations multiply counts by sizes in
/// an int.
inline constexpr std::size_t largest_message = std::size_t{1} << 30;

/// A number of elements as MPI takes it. The one place where sizes are narrowed.
/// @throws Error (invalid_argument) for a message beyond `limit` bytes: chunks must be cut before
[[nodiscard]] inline int narrow_count(std::size_t count, std::size_t element, std::size_t limit) {
  std::uint64_t const bytes = checked_mul(count, element);
  if (bytes > limit || bytes > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
    fail(ErrorKind::invalid_argument,
         {"a message of ", bytes, " bytes exceeds the limit of ", limit, " bytes for one message"});
  }
  return static_cast<int>(count);
}

/// Bytes of one chunk of an exchange among `size` ranks: two chunks to and two from every peer
/// share `budget`, so that what the library holds does not grow with the group, above a floor.
[[nodiscard]] constexpr std::size_t chunk_bytes(std::size_t budget,
                                                std::size_t limit,
                                                int size) noexcept {
  constexpr std::size_t floor = 4 * KiB;
  std::size_t const peers = size > 1 ? static_cast<std::size_t>(size) - 1 : 1;
  std::size_t const share = std::max(floor, budget / (4 * peers));
  return std::max<std::size_t>(8, std::min({share, limit, largest_message}) / 8 * 8);
}

}  // namespace zero::inline v0_1::mpi::detail
