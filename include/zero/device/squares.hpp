/// @file
/// One block's share of the gradient norm, as eight threads compute it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/vector.hpp"
#include "zero/layout/placement.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::device {

/// Threads that share one block of the norm: its lanes.
inline constexpr unsigned team = 8;

/// The sum, in fp64 and in the order of i, of x[i]² for i = lane, lane + 8, ... below `count`.
///
/// The square of a float is exact in fp64, so that fusing the multiply-add or not makes no
/// difference to a bit.
/// @param at     at(i) is x[i], asked for once
/// @param count  elements of the block
/// @param lane   this thread's number in the team
template <class At>
[[nodiscard]] ZERO_HOST_DEVICE double lane_squares(At const& at,
                                                   std::size_t count,
                                                   unsigned lane) noexcept {
  double sum = 0.;
  ZERO_UNROLL(4)
  for (std::size_t i = lane; i < count; i += team) {
    double const wide = static_cast<double>(static_cast<float>(at(i)));
    sum += wide * wide;
  }
  return sum;
}

/// `lane_squares` of a whole block for lane `thread`, in vectors of 16 bytes. For all threads of a
/// team in step.
/// @tparam T         of the elements
/// @tparam abreast   vectors that are asked for at once
/// @param vector_at  vector_at(i) is the vector that begins with x[i], asked for once
/// @param thread     this thread's number in the team
/// @param transpose  transpose(values) exchanges value i of thread k with value k of thread i
template <class T, unsigned abreast = 4, class VectorAt, class Transpose>
[[nodiscard]] ZERO_HOST_DEVICE double block_squares(VectorAt const& vector_at,
                                                    unsigned thread,
                                                    Transpose const& transpose) noexcept {
  constexpr unsigned width = access_bytes / sizeof(T);
  constexpr unsigned parts = team / width;  // of a thread's row: one element of each lane
  constexpr std::size_t step = team * width * abreast;
  static_assert(team % width == 0 && abreast % parts == 0 && block % step == 0);
  double sum = 0.;
  ZERO_UNROLL(16)
  for (std::size_t first = 0; first < block; first += step) {
    Vector<T, width> loaded[abreast];
    ZERO_UNROLL(abreast)
    for (unsigned k = 0; k < abreast; ++k) {
      unsigned const row = k / parts * team + thread;
      loaded[k] = vector_at(first + row * team + k % parts * width);
    }
    ZERO_UNROLL(abreast)
    for (unsigned k = 0; k < abreast; k += parts) {
      float values[team];
      ZERO_UNROLL(team)
      for (unsigned i = 0; i < team; ++i) {
        values[i] = static_cast<float>(loaded[k + i / width].values[i % width]);
      }
      transpose(values);
      for (float const value : values) {
        double const wide = static_cast<double>(value);
        sum += wide * wide;
      }
    }
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

}  // namespace zero::inline ZERO_NAMESPACE::device
