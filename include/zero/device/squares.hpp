/// @file
/// One block's share of the gradient norm, as eight threads compute it.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/base/math.hpp"
#include "zero/device/vector.hpp"
#include "zero/layout/placement.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::device {

/// Threads that share one block of the norm: its lanes.
inline constexpr unsigned team = 8;

/// The square of an element, in fp64. That of a float is exact, so that fusing the multiply-add or
/// not makes no difference to a bit; that of a double is rounded before it is added.
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE double square(T element) noexcept {
  if constexpr (std::is_same_v<T, double>) {
    return math::product(element, element);
  } else if constexpr (sizeof(T) == 2) {
    // Not finite is all that counts of a NaN.
    double const wide = static_cast<double>(widen_half<T>(element.bits));
    return wide * wide;
  } else {
    double const wide = static_cast<double>(element);
    return wide * wide;
  }
}

/// Adds, in fp64 and in the order of i, x[i]² for i = lane, lane + 8, ... below `count`.
/// @param x      asked for once
/// @param count  elements of the block
/// @param lane   this thread's number in the team
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE double lane_squares(T const* x,
                                                   std::size_t count,
                                                   unsigned lane) noexcept {
  constexpr unsigned abreast = 8;  // elements that are asked for at once
  double sum = 0.;
  ZERO_UNROLL(1)
  for (std::size_t i = lane; i < count; i += team * abreast) {
    T elements[abreast];
    ZERO_UNROLL(abreast)
    for (unsigned k = 0; k < abreast; ++k) {
      std::size_t const at = i + k * team;
      elements[k] = at < count ? x[at] : T{};  // the square of 0 adds nothing
    }
    ZERO_UNROLL(abreast)
    for (T const element : elements) sum += square(element);
  }
  return sum;
}

/// Elements of a block that a team shares at once: each thread puts in what it has read, and takes
/// out what its lane adds.
inline constexpr std::size_t stage = 128;

/// Elements from one team's stage to the next team's: those of a warp are read from different
/// banks.
inline constexpr std::size_t stage_stride = stage + team;

/// Elements of a stage that a thread takes out at once: as many as there are; or half of them where
/// doubles are so slow that no time is gained, and the code is long.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 800 && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000
inline constexpr unsigned taken_out = stage / team / 2;
#else
inline constexpr unsigned taken_out = stage / team;
#endif

/// Vectors of a stage, or of a whole block, that each thread of a team reads.
template <class T, std::size_t elements>
inline constexpr unsigned vectors_of = static_cast<unsigned>(elements * sizeof(T) / access_bytes /
                                                             team);

/// `lane_squares` of a whole block for lane `thread`, in vectors of 16 bytes, of which neighbouring
/// threads read neighbouring ones. For all threads of a team in step.
/// @tparam abreast  vectors that are asked for at once
/// @param read    read(vectors, place) reads so many vectors, each once: vector k begins with
///                x[place(k)]
/// @param thread  this thread's number in the team
/// @param shared  the team's stage, at a multiple of 16 bytes
/// @param wait    wait() waits for all threads of the team
template <unsigned abreast, class T, class Read, class Wait>
[[nodiscard]] ZERO_HOST_DEVICE double block_squares(Read const& read,
                                                    unsigned thread,
                                                    T* shared,
                                                    Wait const& wait) noexcept {
  constexpr std::size_t width = access_bytes / sizeof(T);
  constexpr unsigned vectors = vectors_of<T, stage>;
  constexpr std::size_t step = team * width * abreast;
  static_assert(abreast % vectors == 0 && block % step == 0);
  double sum = 0.;
  ZERO_UNROLL(1)
  for (std::size_t first = 0; first < block; first += step) {
    Vector<T, width> loaded[abreast];
    auto const place = [&](unsigned k) { return (k * team + thread) * width; };
    read(loaded, [&](unsigned k) { return first + place(k); });
    ZERO_UNROLL(abreast)
    for (unsigned from = 0; from < abreast; from += vectors) {
      wait();  // others may read what was there
      ZERO_UNROLL(vectors)
      for (unsigned k = 0; k < vectors; ++k) share<width>(shared, place(k), loaded[from + k]);
      wait();
      ZERO_UNROLL(taken_out)
      for (std::size_t i = thread; i < stage; i += team) sum += square(shared[i]);
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
