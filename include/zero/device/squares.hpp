/// @file
/// One block's share of the gradient norm, as eight threads compute it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/vector.hpp"
#include "zero/layout/placement.hpp"

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
  ZERO_UNROLL(4)
  for (std::size_t i = lane; i < count; i += team) {
    double const wide = static_cast<double>(static_cast<float>(x[i]));
    sum += wide * wide;
  }
  return sum;
}

/// The team's threads load `N` neighbouring elements each, and then have one lane each.
template <unsigned N>
struct TeamLanes {
  static_assert(N != 0 && team % N == 0, "zero: a row of lanes is no whole number of loads");

  /// The lane of a thread of the team, once rows and lanes are exchanged.
  [[nodiscard]] ZERO_HOST_DEVICE static constexpr unsigned lane(unsigned thread) noexcept {
    return thread % (team / N) * N + thread / (team / N);
  }
  /// How far apart the threads of two lanes are whose numbers differ by the bit `distance`.
  [[nodiscard]] ZERO_HOST_DEVICE static constexpr unsigned threads(unsigned distance) noexcept {
    return distance >= N ? distance / N : distance * (team / N);
  }

  /// Gives every thread the elements of its lane. A step exchanges one bit of the place with one of
  /// the thread's number, as in a transposition.
  /// @param values    on entry, elements [thread * N, thread * N + N) of N rows of lanes; on
  /// return,
  ///                  those of the thread's lane, row by row
  /// @param thread    this thread's number in the team
  /// @param exchange  exchange(value, distance) gives what the thread whose number differs by the
  ///                  bit `distance` gives for its own call
  template <class Exchange>
  ZERO_HOST_DEVICE static void transpose(float (&values)[N],
                                         unsigned thread,
                                         Exchange const& exchange) noexcept {
    ZERO_UNROLL(3)
    for (unsigned bit = N / 2; bit != 0; bit /= 2) {
      unsigned const distance = bit * (team / N);
      bool const upper = (thread & distance) != 0;
      ZERO_UNROLL(N)
      for (unsigned i = 0; i < N; ++i) {
        if ((i & bit) != 0) continue;
        float const received = exchange(upper ? values[i] : values[i | bit], distance);
        values[i] = upper ? received : values[i];
        values[i | bit] = upper ? values[i | bit] : received;
      }
    }
  }
};

/// `lane_squares` of a whole block for lane TeamLanes::lane(thread), in loads of 16 bytes. For all
/// threads of a team in step.
/// @param x         the block, at a multiple of 16 bytes
/// @param thread    this thread's number in the team
/// @param exchange  as of TeamLanes::transpose
template <class T, class Exchange>
[[nodiscard]] ZERO_HOST_DEVICE double block_squares(T const* x,
                                                    unsigned thread,
                                                    Exchange const& exchange) noexcept {
  constexpr unsigned width = access_bytes / sizeof(T);
  constexpr std::size_t step = team * width;
  // Loads that are under way at once.
  constexpr std::size_t abreast = 4;
  static_assert(block % (abreast * step) == 0);
  double sum = 0.;
  ZERO_UNROLL(16)
  for (std::size_t row = 0; row < block; row += abreast * step) {
    Vector<T, width> loaded[abreast];
    ZERO_UNROLL(abreast)
    for (std::size_t k = 0; k < abreast; ++k) {
      loaded[k] = load<width>(x, row + k * step + thread * width);
    }
    ZERO_UNROLL(abreast)
    for (Vector<T, width> const& vector : loaded) {
      float values[width];
      for (std::size_t i = 0; i < width; ++i) values[i] = static_cast<float>(vector.values[i]);
      TeamLanes<width>::transpose(values, thread, exchange);
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

}  // namespace zero::inline v0_1::device
