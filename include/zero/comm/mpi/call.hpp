/// @file
/// What a rank tells its peers of a collective that it has started.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Collectives a rank may have under way; `start` blocks when there would be more.
inline constexpr std::size_t ring_slots = 64;

/// Send buffers up to this size are copied into the control block, which peers read at once.
inline constexpr std::size_t inline_bytes = 2048;

/// Where a buffer lies that is neither in the sender's pool nor in its control block.
inline constexpr std::int64_t outside = -1;
/// A send buffer that was copied into the control block.
inline constexpr std::int64_t inlined = -2;

/// One rank's part of a collective as its peers see it: compared before data moves.
struct Call {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  std::int32_t op = 0;
  std::int32_t dtype = 0;
  std::int32_t accumulate = 0;
  std::int32_t root = 0;
  std::int32_t bucket = 0;
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

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
