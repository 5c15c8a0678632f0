/// @file
/// Sums of squares in fp64, in an order that no partition can change.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/base/math.hpp"
#include "zero/kernel/cache_prefetch.hpp"
#include "zero/kernel/pack.hpp"
#include "zero/layout/placement.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Lanes of the running sums of `add_squares`.
inline constexpr std::size_t norm_lanes = 8;

namespace detail {

/// The square of an element, in fp64. That of a float is exact, so that fusing the multiply-add or
/// not makes no difference to a bit; that of a double is rounded before it is added.
template <class T>
[[nodiscard]] ZERO_ALWAYS_INLINE double square(T const& element) noexcept {
  if constexpr (std::is_same_v<T, double>) {
    return math::product(element, element);
  } else {
    double const wide = static_cast<double>(static_cast<float>(element));
    return wide * wide;
  }
}

/// sums[2 i] and sums[2 i + 1] += the squares of the `i`th pack of a row from x on; of doubles
/// there are packs of half as many.
template <Isa I, class T>
ZERO_ALWAYS_INLINE void add_square_row(T const* x, typename Pack<I>::Doubles* sums) noexcept {
  using V = Pack<I>;
  for (std::size_t i = 0; i < norm_lanes / V::lanes; ++i) {
    if constexpr (std::is_same_v<T, double>) {
      for (std::size_t half = 0; half < 2; ++half) {
        using W = WidePack<I>;
        W const values = W::load(x + i * V::lanes + half * W::lanes);
        W const squares = W::opaque(values * values);
        typename V::Doubles add;
        static_assert(sizeof(add) == sizeof(squares));
        __builtin_memcpy(&add, &squares, sizeof(add));
        sums[2 * i + half] += add;
      }
    } else {
      V const values = V::load(x + i * V::lanes);
      typename V::Doubles const low = values.low_doubles();
      typename V::Doubles const high = values.high_doubles();
      sums[2 * i] += low * low;
      sums[2 * i + 1] += high * high;
    }
  }
}

/// Adds the squares of `rows` rows of eight elements to the eight lanes.
template <Isa I, class T>
ZERO_ALWAYS_INLINE void add_square_rows(T const* x,
                                        std::size_t rows,
                                        double (&lanes)[norm_lanes]) noexcept {
  using V = Pack<I>;
  typename V::Doubles sums[2 * norm_lanes / V::lanes];
  static_assert(sizeof(sums) == sizeof(lanes));
  __builtin_memcpy(sums, lanes, sizeof(sums));
  for (std::size_t row = 0; row < rows; ++row, x += norm_lanes) {
    prefetch<1024>(x);
    add_square_row<I>(x, sums);
  }
  __builtin_memcpy(lanes, sums, sizeof(sums));
}

}  // namespace detail

/// Adds x[i]² to lane (first + i) % 8, for i in [0, count), each lane in the order of i.
///
/// `first` is the position of x[0] in its block of the logical element space. However a block is
/// cut into calls, each lane meets the same squares in the same order and ends with the same bits.
/// A value that is not finite leaves its lane not finite.
template <class T, Isa I = native>
void add_squares(T const* x,
                 std::size_t count,
                 std::uint64_t first,
                 double (&lanes)[norm_lanes]) noexcept {
  std::size_t i = 0;
  auto const add_one = [&](T const& element) {
    lanes[(first + i) % norm_lanes] += detail::square(element);
  };
  for (; i < count && (first + i) % norm_lanes != 0; ++i) add_one(x[i]);
  std::size_t const rows = (count - i) / norm_lanes;
  detail::add_square_rows<I>(x + i, rows, lanes);
  i += rows * norm_lanes;
  for (; i < count; ++i) add_one(x[i]);
}

/// The sum of the lanes, in a fixed order.
[[nodiscard]] inline double sum_lanes(double const (&lanes)[norm_lanes]) noexcept {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

namespace detail {

/// Blocks whose lanes are summed side by side: a lane is a chain of dependent additions, and one
/// block's chains leave most of the adder idle. More than two gained nothing; without wide
/// registers, not even two.
template <Isa I>
inline constexpr std::size_t blocks_abreast = Pack<I>::lanes >= norm_lanes ? 2 : 1;

/// Adds the squares of so many whole blocks to their lanes.
template <Isa I, class T>
ZERO_ALWAYS_INLINE void add_square_blocks(T const* x,
                                          double (&lanes)[blocks_abreast<I>][norm_lanes]) noexcept {
  using V = Pack<I>;
  constexpr std::size_t packs = norm_lanes / V::lanes;
  typename V::Doubles sums[blocks_abreast<I>][2 * packs];
  static_assert(sizeof(sums) == sizeof(lanes));
  __builtin_memcpy(sums, lanes, sizeof(sums));
  for (std::size_t row = 0; row < block; row += norm_lanes) {
    for (std::size_t b = 0; b < blocks_abreast<I>; ++b) {
      T const* const at = x + b * block + row;
      prefetch<blocks_abreast<I> * block * sizeof(T)>(at);
      add_square_row<I>(at, sums[b]);
    }
  }
  __builtin_memcpy(lanes, sums, sizeof(sums));
}

}  // namespace detail

/// Adds the squares of x[0, count) to `sum`: in fp64 within each block of `zero::block` elements
/// from x[0] on, exactly from block to block. A block that is not finite is counted as such.
/// @par Cost  one pass
template <class T, Isa I = native>
void add_squares(ExactSum& sum, T const* x, std::size_t count) noexcept {
  constexpr std::size_t abreast = detail::blocks_abreast<I>;
  std::size_t done = 0;
  for (; done + abreast * block <= count; done += abreast * block) {
    double lanes[abreast][norm_lanes] = {};
    detail::add_square_blocks<I>(x + done, lanes);
    for (auto const& of_block : lanes) sum.add(sum_lanes(of_block));
  }
  for (; done < count; done += block) {
    double lanes[norm_lanes] = {};
    std::size_t const rest = count - done;
    add_squares<T, I>(x + done, rest < block ? rest : block, 0, lanes);
    sum.add(sum_lanes(lanes));
  }
}

/// True if there are squares of this type to add.
[[nodiscard]] constexpr bool has_squares(DType type) noexcept {
  return type == DType::f32 || type == DType::f64 || type == DType::bf16 || type == DType::f16;
}

/// Adds squares of elements that come piece by piece, in order: what `add_squares` of all of them
/// at once adds.
class RunningSquares {
 public:
  /// The next `count` elements, of a type that has squares.
  ZERO_APART void add(ExactSum& sum, DType type, void const* x, std::size_t count) noexcept;
  /// No more come: the last block is complete.
  void end(ExactSum& sum) noexcept {
    if (in_block_ == 0) return;
    sum.add(sum_lanes(lanes_));
    *this = {};
  }

 private:
  template <class T>
  void add(ExactSum& sum, T const* x, std::size_t count) noexcept {
    while (count > 0) {
      std::size_t const whole = in_block_ == 0 ? count / block * block : 0;
      std::size_t const rest = block - in_block_;
      std::size_t const now = whole > 0 ? whole : (count < rest ? count : rest);
      if (whole > 0) {
        add_squares(sum, x, now);
      } else {
        add_squares(x, now, in_block_, lanes_);
        in_block_ += now;
        if (in_block_ == block) end(sum);
      }
      x += now;
      count -= now;
    }
  }

  double lanes_[norm_lanes] = {};
  std::size_t in_block_ = 0;  ///< elements of the present block that have come
};

#if ZERO_BODIES

ZERO_BODY void RunningSquares::add(ExactSum& sum,
                                   DType type,
                                   void const* x,
                                   std::size_t count) noexcept {
  switch (type) {
    case DType::f32: return add(sum, static_cast<float const*>(x), count);
    case DType::f64: return add(sum, static_cast<double const*>(x), count);
    case DType::bf16: return add(sum, static_cast<bf16 const*>(x), count);
    case DType::f16: return add(sum, static_cast<fp16 const*>(x), count);
    default: return;
  }
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::kernel
