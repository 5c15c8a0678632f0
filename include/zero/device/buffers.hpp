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

/// Ranges of elements of which sums are written, each to buffers of its own, all alike: one range
/// to every rank's buffer, or one for each rank.
struct SumTargets {
  void* at[max_listed_ranks] = {};  ///< where they begin, `count` for each range
  int count = 1;                    ///< buffers of a range
  int ranges = 1;                   ///< how many there are, equally long

  std::size_t first[max_listed_ranks] = {};  ///< the first element of each range

  /// Buffer `i` of a range.
  template <class T>
  [[nodiscard]] ZERO_HOST_DEVICE T* of(unsigned range, int i = 0) const noexcept {
    return static_cast<T*>(at[static_cast<int>(range) * count + i]);
  }
};

/// The buffers that blocks of all ranks are written to.
struct GatherTargets {
  void* at[max_listed_ranks] = {};  ///< where they begin
  std::size_t skip[max_listed_ranks] =
      {};         ///< bytes of every rank's buffer before a target's block
  int count = 1;  ///< how many there are
};

}  // namespace zero::inline ZERO_NAMESPACE::device
