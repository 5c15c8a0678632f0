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

/// Two neighbouring 16-bit elements in one word, of which only the squares are wanted. A NaN need
/// not keep its bits, since it only counts as not finite: that leaves one instruction an element.
template <class T>
ZERO_HOST_DEVICE void widen_halves(std::uint32_t word, float& first, float& second) noexcept {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, fp16>) {
    asm("cvt.f32.f16 %0, %1;" : "=f"(first) : "h"(static_cast<std::uint16_t>(word)));
    asm("cvt.f32.f16 %0, %1;" : "=f"(second) : "h"(static_cast<std::uint16_t>(word >> 16)));
    return;
  }
#endif
  if constexpr (std::is_same_v<T, bf16>) {
    first = std::bit_cast<float>(word << 16);
    second = std::bit_cast<float>(word & 0xffff0000u);
  } else {
    first = static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(word)));
    second = static_cast<float>(std::bit_cast<T>(static_cast<std::uint16_t>(word >> 16)));
  }
}

/// The square of an element, in fp64. That of a float is exact, so that fusing the multiply-add or
/// not makes no difference to a bit; that of a double is rounded before it is added.
template <class T>
[[nodiscard]] ZERO_HOST_DEVICE double square(T element) noexcept {
  if constexpr (std::is_same_v<T, double>) {
    return math::product(element, element);
  } else {
    double const wide = static_cast<double>(static_cast<float>(element));
    return wide * wide;
  }
}

/// The sum, in fp64 and in the order of i, of x[i]² for i = lane, lane + 8, ... below `count`.
/// @param at     at(i) is x[i], asked for once
/// @param count  elements of the block
/// @param lane   this thread's number in the team
/// @tparam abreast  elements that are asked for at once
template <unsigned abreast = 1, class At>
[[nodiscard]] ZERO_HOST_DEVICE double lane_squares(At const& at,
                                                   std::size_t count,
                                                   unsigned lane) noexcept {
  double sum = 0.;
  ZERO_UNROLL(abreast)
  for (std::size_t i = lane; i < count; i += team) {
    sum += square(at(i));
  }
  return sum;
}

/// Four of the eight bytes of `low`, 0 to 3, and `high`, 4 to 7: each digit of `which`, the last
/// one first, is the number of one.
[[nodiscard]] ZERO_HOST_DEVICE inline std::uint32_t pick_bytes(std::uint32_t low,
                                                               std::uint32_t high,
                                                               unsigned which) noexcept {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, which);
#else
  std::uint64_t const bytes = std::uint64_t{high} << 32 | low;
  std::uint32_t picked = 0;
  for (unsigned i = 0; i < 4; ++i) {
    picked |= static_cast<std::uint32_t>(bytes >> (which >> 4 * i & 7u) * 8 & 0xffu) << 8 * i;
  }
  return picked;
#endif
}

/// Turns eight rows of eight 16-bit elements, one with each thread of a team, into columns:
/// exchanges element i of thread k with element k of thread i. Two elements go at once.
/// @param words     a thread's row: elements 2 i and 2 i + 1 are the halves of word i
/// @param thread    this thread's number in the team
/// @param exchange  exchange(word, distance) gives the word of the thread whose number differs by
///                  the bit `distance`
template <class Exchange>
ZERO_HOST_DEVICE void transpose_halves(std::uint32_t (&words)[team / 2],
                                       unsigned thread,
                                       Exchange const& exchange) noexcept {
  // Blocks of 4 by 4 elements change sides, then of 2 by 2 within each, then single ones.
  ZERO_UNROLL(2)
  for (unsigned distance = 4; distance > 1; distance /= 2) {
    bool const upper = (thread & distance) != 0;
    unsigned const apart = distance / 2;
    ZERO_UNROLL(4)
    for (unsigned i = 0; i < team / 2; ++i) {
      if ((i & apart) != 0) continue;
      std::uint32_t const got = exchange(upper ? words[i] : words[i + apart], distance);
      words[i] = upper ? got : words[i];
      words[i + apart] = upper ? words[i + apart] : got;
    }
  }
  bool const upper = (thread & 1u) != 0;
  unsigned const sent = upper ? 0x5410 : 0x7632;
  unsigned const first = upper ? 0x3254 : 0x5410;
  unsigned const second = upper ? 0x3276 : 0x7610;
  ZERO_UNROLL(2)
  for (unsigned i = 0; i < team / 2; i += 2) {
    std::uint32_t const got = exchange(pick_bytes(words[i], words[i + 1], sent), 1u);
    words[i] = pick_bytes(words[i], got, first);
    words[i + 1] = pick_bytes(words[i + 1], got, second);
  }
}

/// `lane_squares` of a whole block for lane `thread`, in vectors of 16 bytes. For all threads of a
/// team in step.
/// The code stands once, or it would not fit the cache for it.
/// @tparam T        of the elements
/// @tparam abreast  vectors that are asked for at once
/// @param vector_at  vector_at(i) is the vector that begins with x[i], asked for once
/// @param thread     this thread's number in the team
/// @param transpose  transpose(values) exchanges value i of thread k with value k of thread i, for
///                   eight floats, and for four words of two 16-bit elements
template <class T,
          unsigned abreast = 2 * team * sizeof(T) / access_bytes,
          class VectorAt,
          class Transpose>
[[nodiscard]] ZERO_HOST_DEVICE double block_squares(VectorAt const& vector_at,
                                                    unsigned thread,
                                                    Transpose const& transpose) noexcept {
  constexpr unsigned width = access_bytes / sizeof(T);
  constexpr unsigned parts = team / width;  // of a thread's row: one element of each lane
  constexpr std::size_t step = team * width * abreast;
  static_assert(team % width == 0 && abreast % parts == 0 && block % step == 0);
  double sum = 0.;
  ZERO_UNROLL(1)
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
      if constexpr (sizeof(T) == 2) {
        auto words = std::bit_cast<Vector<std::uint32_t, team / 2>>(loaded[k]);
        transpose(words.values);
        ZERO_UNROLL(team)
        for (unsigned i = 0; i < team; i += 2) {
          widen_halves<T>(words.values[i / 2], values[i], values[i + 1]);
        }
      } else {
        ZERO_UNROLL(team)
        for (unsigned i = 0; i < team; ++i) {
          values[i] = loaded[k + i / width].values[i % width];
        }
        transpose(values);
      }
      for (float const value : values) sum += square(value);
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
