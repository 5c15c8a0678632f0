/// @file
/// A collective over buffers in one address space, cut into independent pieces of work.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/comm/shared/call_checks.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/reduce.hpp"

#include <algorithm>
#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::detail {

/// The buffers of all ranks that take part in one collective.
struct Buffers {
  void const* const* send = nullptr;
  void* const* recv = nullptr;
  int size = 0;
};

/// Where share `share` of `size` begins in a result of `count` elements that all ranks have. Share
/// `size` begins at the end.
/// @param step  that shares begin at multiples of: whole cache lines, so that two threads do not
///   write to the same one
[[nodiscard]] constexpr std::size_t share_begin(std::size_t count,
                                                int share,
                                                int size,
                                                std::size_t step = 64) noexcept {
  std::size_t const round = static_cast<std::size_t>(size) * step;
  return (std::min)(count, (count + round - 1) / round * step * static_cast<std::size_t>(share));
}

/// Elements of that share.
[[nodiscard]] constexpr std::size_t share_length(std::size_t count,
                                                 int share,
                                                 int size,
                                                 std::size_t step = 64) noexcept {
  return share_begin(count, share + 1, size, step) - share_begin(count, share, size, step);
}

/// Elements of share `share` of `size`. Shares are disjoint and any thread may work on any part of
/// any of them, so a collective needs one rendezvous before its work and one after, in any order:
/// | op                    | a share is                           | who benefits from its cache |
/// |-----------------------|--------------------------------------|-----------------------------|
/// | reduce_scatter        | the result of one rank               | that rank, as receiver      |
/// | all_gather            | the block of one rank, for all ranks | that rank, as sender        |
/// | all_to_all            | everything one rank receives         | that rank, as receiver      |
/// | all_reduce, broadcast | a range of the result, for all ranks | nobody in particular        |
[[nodiscard]] constexpr std::size_t share_length(Collective const& op,
                                                 int share,
                                                 int size) noexcept {
  if (op.op == Op::all_to_all) return op.count * static_cast<std::size_t>(size);
  if (op.op == Op::reduce_scatter || op.op == Op::all_gather) return op.count;
  return share_length(op.count, share, size);
}

/// Bytes that stay in a near cache while they are written to every rank's buffer. Measured: smaller
/// tiles switch between reading memory and writing it too often, which costs a tenth at 8 KiB.
inline constexpr std::size_t fan_out_bytes = 32 * KiB;

[[nodiscard]] inline std::byte* offset(void* buffer, std::size_t bytes) noexcept {
  return static_cast<std::byte*>(buffer) + bytes;
}
[[nodiscard]] inline std::byte const* offset(void const* buffer, std::size_t bytes) noexcept {
  return static_cast<std::byte const*>(buffer) + bytes;
}

/// Copies `bytes` to the same offset of every rank's receive buffer.
ZERO_APART void copy_to_all(
    Buffers const& buffers, std::size_t at, std::byte const* from, std::size_t bytes, bool stream);

/// Carries out elements [begin, begin + length) of one share. The squares that its rank asks for
/// are added to `op.squares`; `begin` is a multiple of `block` then.
///
/// Reads every source once and writes every destination once; sums are added in rank order, so the
/// result does not depend on how shares are cut or on who works on them.
ZERO_APART void run_part(Collective const& op,
                         Buffers const& buffers,
                         int share,
                         std::size_t begin,
                         std::size_t length,
                         bool stream) noexcept;

#if ZERO_BODIES

ZERO_BODY void copy_to_all(
    Buffers const& buffers, std::size_t at, std::byte const* from, std::size_t bytes, bool stream) {
  for (int rank = 0; rank < buffers.size; ++rank) {
    std::byte* const to = offset(buffers.recv[rank], at);
    if (to == from) continue;
    if (stream) {
      kernel::copy_streaming(to, from, bytes);
    } else {
      kernel::copy(to, from, bytes, kernel::Store::cached);
    }
  }
}

ZERO_BODY void run_part(Collective const& op,
                        Buffers const& buffers,
                        int share,
                        std::size_t begin,
                        std::size_t length,
                        bool stream) noexcept {
  std::size_t const element = size_of(op.dtype);
  auto const store = stream ? kernel::Store::streaming : kernel::Store::cached;
  switch (op.op) {
    case Op::reduce_scatter: {
      std::size_t const first = static_cast<std::size_t>(share) * op.count + begin;
      void* const out = offset(buffers.recv[share], begin * element);
      kernel::SquaredSum squared{.squares = op.squares,
                                 .left = op.squares_count - (std::min)(op.squares_count, begin)};
      kernel::sum_and_square(
          op.dtype, op.accumulate, out, buffers.send, first, buffers.size, length, store, squared);
      squared.end();
      return;
    }
    case Op::all_reduce: {
      auto const sum = kernel::sum_function(op.dtype, op.accumulate);
      std::size_t const first = share_begin(op.count, share, buffers.size) + begin;
      std::size_t const step = fan_out_bytes / element;
      alignas(64) std::byte tile[fan_out_bytes];
      for (std::size_t done = 0; done < length; done += step) {
        std::size_t const now = (std::min)(step, length - done);
        sum(tile, buffers.send, first + done, buffers.size, now, kernel::Store::cached);
        copy_to_all(buffers, (first + done) * element, tile, now * element, stream);
      }
      break;
    }
    case Op::all_gather:
    case Op::broadcast: {
      bool const gather = op.op == Op::all_gather;
      std::size_t const source =
          gather ? begin : share_begin(op.count, share, buffers.size) + begin;
      std::byte const* const from =
          offset(buffers.send[gather ? share : op.root], source * element);
      std::size_t const target =
          gather ? (static_cast<std::size_t>(share) * op.count + begin) * element
                 : source * element;
      std::size_t const bytes = length * element;
      for (std::size_t done = 0; done < bytes; done += fan_out_bytes) {
        std::size_t const now = (std::min)(fan_out_bytes, bytes - done);
        copy_to_all(buffers, target + done, from + done, now, stream);
      }
      break;
    }
    case Op::all_to_all: {
      for (std::size_t at = begin; at < begin + length;) {
        std::size_t const source = at / op.count;
        std::size_t const within = at % op.count;
        std::size_t const now = (std::min)(op.count - within, begin + length - at);
        std::size_t const first = static_cast<std::size_t>(share) * op.count + within;
        kernel::copy(offset(buffers.recv[share], at * element),
                     offset(buffers.send[source], first * element),
                     now * element,
                     store);
        at += now;
      }
      return;
    }
  }
  if (stream) kernel::publish_streaming_stores();
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::detail
