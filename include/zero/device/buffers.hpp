/// @file
/// The buffers of all ranks, as a kernel is told of them.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::device {

/// Buffers of up to so many ranks fit into the parameters of a kernel.
inline constexpr int max_listed_ranks = 64;

/// One address per rank, wherever it points.
struct BufferList {
  /// May some of them be aligned to 16 bytes where others are not?
  static constexpr bool anywhere = true;

  void const* at[max_listed_ranks] = {};  ///< of each rank

  /// Where the buffer of `rank` begins.
  template <class T>
  [[nodiscard]] ZERO_HOST_DEVICE T const* of(int rank) const noexcept {
    return static_cast<T const*>(at[rank]);
  }
};

/// Equal blocks of any number of ranks, one after the other: what an all-to-all leaves behind.
struct BufferBlocks {
  static constexpr bool anywhere = false;  ///< NcclExchange places them so that they are aligned

  void const* first = nullptr;  ///< rank 0's
  std::size_t stride = 0;       ///< from one rank's to the next's, in elements

  /// Where the block of `rank` begins.
  template <class T>
  [[nodiscard]] ZERO_HOST_DEVICE T const* of(int rank) const noexcept {
    return static_cast<T const*>(first) + static_cast<std::size_t>(rank) * stride;
  }
};

/// The buffers that a sum is written to, all alike.
struct SumTargets {
  void* at[max_listed_ranks] = {};  ///< where they begin
  int count = 1;                    ///< how many there are
};

}  // namespace zero::inline ZERO_NAMESPACE::device
