/// @file
/// One block's share of the gradient norm, as eight threads compute it.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>

namespace zero::inline v0_1::device {

/// Threads that share one block of the norm: its lanes.
inline constexpr unsigned team = 8;

/// The sum, in fp64 and in the order of i, of x[i]² for i = lane, lane + 8, ... below `count`.
///
/// The square of a float is exact in fp64, so that fusing the multiply-add or not makes no
/// difference to a bit.
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE double lane_squares(T const* x,
                                                   std::size_t count,
                                                   unsigned lane) noexcept {
  double sum = 0.;
#if defined(__CUDA_ARCH__)
#pragma unroll 16
#endif
  for (std::size_t i = lane; i < count; i += team) {
    double const wide = static_cast<double>(static_cast<float>(x[i]));
    sum += wide * wide;
  }
  return sum;
}

/// The block's sum of squares, from those of its lanes: ((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7)).
/// Additions commute, so that every lane of the team ends with the same bits.
/// @param lane      this lane's own sum
/// @param exchange  exchange(value, distance) gives the value of the lane whose number differs by
///                  the bit `distance`
template <class Exchange>
[[nodiscard]] ZERO_HOST_DEVICE double team_sum(double lane, Exchange const& exchange) noexcept {
  for (unsigned distance = team / 2; distance != 0; distance /= 2) {
    lane += exchange(lane, distance);
  }
  return lane;
}

}  // namespace zero::inline v0_1::device
