/// @file
/// Sizes of what is handed to MPI.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// The largest message this library hands to MPI: some implementations multiply counts by sizes in
/// an int.
inline constexpr std::size_t largest_message = std::size_t{1} << 30;

/// A number of elements as MPI takes it. The one place where sizes are narrowed.
/// @throws Error (invalid_argument) for a message beyond `limit` bytes: chunks must be cut before
[[nodiscard]] inline int narrow_count(std::size_t count, std::size_t element, std::size_t limit) {
  std::uint64_t const bytes = checked_mul(count, element);
  if (bytes > limit || bytes > static_cast<std::uint64_t>((std::numeric_limits<int>::max)())) {
    fail(ErrorKind::invalid_argument,
         {"a message of ", bytes, " bytes exceeds the limit of ", limit, " bytes for one message"});
  }
  return static_cast<int>(count);
}

/// Chunks of a link that a receiver has room for, and that a sender has under way.
inline constexpr std::size_t chunks_in = 4;
inline constexpr std::size_t chunks_out = 2;

/// Bytes in front of the data of a message: of the head that the first one has.
inline constexpr std::size_t head_bytes = 64;

/// Bytes of data in one message of an exchange among `size` ranks: what the library holds for all
/// peers shares `budget`, so that it does not grow with the group, above a floor.
[[nodiscard]] constexpr std::size_t chunk_bytes(std::size_t budget,
                                                std::size_t limit,
                                                int size) noexcept {
  constexpr std::size_t floor = 4 * KiB;
  std::size_t const peers = size > 1 ? static_cast<std::size_t>(size) - 1 : 1;
  std::size_t const share = (std::max)(floor, budget / ((chunks_in + chunks_out) * peers));
  std::size_t const data = (std::min)({share, limit, largest_message}) - head_bytes;
  // Pieces of buffers begin where their buffers' pages and cache lines do.
  return data / (data >= 4 * KiB ? 4 * KiB : 8) * (data >= 4 * KiB ? 4 * KiB : 8);
}

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
