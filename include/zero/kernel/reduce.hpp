/// @file
/// Sums over ranks: one pass over all ranks' buffers, added in rank order, rounded once.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/kernel/cache_prefetch.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/norm.hpp"
#include "zero/kernel/pack.hpp"
#include "zero/kernel/rounding.hpp"
#include "zero/layout/placement.hpp"

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// Elements summed at a time: a constant trip count is what lets plain -O2 vectorise the loops.
inline constexpr std::size_t sum_width = 64;

/// How far ahead of its reads a sum asks for memory.
inline constexpr std::size_t sum_prefetch_bytes = 1024;

/// The type sums are computed in; 16-bit types have no arithmetic of their own, and unsigned
/// integers wrap where signed ones would be undefined.
template <class Acc>
struct Arithmetic {
  using Type = float;
};
template <std::floating_point Acc>
struct Arithmetic<Acc> {
  using Type = Acc;
};
template <std::signed_integral Acc>
struct Arithmetic<Acc> {
  using Type = std::make_unsigned_t<Acc>;
};

/// Rounds a sum to the accumulate type where that is narrower than the arithmetic.
template <class Acc, class Value>
[[nodiscard]] ZERO_ALWAYS_INLINE constexpr Value rounded(Value value) noexcept {
  if constexpr (std::is_arithmetic_v<Acc>) {
    return value;
  } else {
    return static_cast<Value>(static_cast<Acc>(value));
  }
}

/// An element as a number of the arithmetic type; integers are widened with their sign.
template <class Acc, class T>
[[nodiscard]] ZERO_ALWAYS_INLINE constexpr auto widened(T value) noexcept {
  using Value = typename Arithmetic<Acc>::Type;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<Value>(static_cast<Acc>(value));
  } else {
    return convert<Value>(value);
  }
}

/// result[0, Count) = sum over ranks of inputs[r][at, at + Count), for any types.
template <class T, class Acc, std::size_t Count, class Pointer>
ZERO_ALWAYS_INLINE void sum_elements(T* result,
                                     Pointer const* inputs,
                                     std::size_t at,
                                     int ranks) noexcept {
  using Value = typename Arithmetic<Acc>::Type;
  Value sum[Count];
  T const* const first = static_cast<T const*>(inputs[0]) + at;
  if (ranks == 1) {
    for (std::size_t i = 0; i < Count; ++i) sum[i] = widened<Acc>(first[i]);
  } else {
    T const* const second = static_cast<T const*>(inputs[1]) + at;
    for (std::size_t i = 0; i < Count; ++i) {
      sum[i] = rounded<Acc>(widened<Acc>(first[i]) + widened<Acc>(second[i]));
    }
  }
  int rank = 2;
  for (; rank + 1 < ranks; rank += 2) {
    T const* const even = static_cast<T const*>(inputs[rank]) + at;
    T const* const odd = static_cast<T const*>(inputs[rank + 1]) + at;
    for (std::size_t i = 0; i < Count; ++i) {
      Value const partial = rounded<Acc>(sum[i] + widened<Acc>(even[i]));
      sum[i] = rounded<Acc>(partial + widened<Acc>(odd[i]));
    }
  }
  if (rank < ranks) {
    T const* const last = static_cast<T const*>(inputs[rank]) + at;
    for (std::size_t i = 0; i < Count; ++i) sum[i] = rounded<Acc>(sum[i] + widened<Acc>(last[i]));
  }
  for (std::size_t i = 0; i < Count; ++i) result[i] = convert<T>(sum[i]);
}

/// The same for sums in fp32: four packs at a time, which hides the latency of an addition. The
/// conversions of the 16-bit types are what explicit packs are needed for.
template <class T, std::size_t Count, Isa I, class Pointer>
ZERO_ALWAYS_INLINE void sum_packs(T* result,
                                  Pointer const* inputs,
                                  std::size_t at,
                                  int ranks) noexcept {
  // fp32 has nothing to convert, and is as fast in the narrowest vectors; in wider ones -O3 unrolls
  // the loop into as many streams as the memory cannot follow, which costs a third.
  constexpr bool narrow = std::same_as<T, float> && (I & isa::sse2) != 0;
  using V = Pack<narrow ? (4u | isa::sse2) : I>;
  constexpr std::size_t step = 4 * V::lanes;
  static_assert(Count % step == 0);
  for (std::size_t i = 0; i < Count; i += step) {
    T const* from = static_cast<T const*>(inputs[0]) + at + i;
    prefetch<sum_prefetch_bytes>(from);
    V a = V::load(from);
    V b = V::load(from + V::lanes);
    V c = V::load(from + 2 * V::lanes);
    V d = V::load(from + 3 * V::lanes);
    for (int rank = 1; rank < ranks; ++rank) {
      from = static_cast<T const*>(inputs[rank]) + at + i;
      prefetch<sum_prefetch_bytes>(from);
      a += V::load(from);
      b += V::load(from + V::lanes);
      c += V::load(from + 2 * V::lanes);
      d += V::load(from + 3 * V::lanes);
    }
    a.store(result + i);
    b.store(result + i + V::lanes);
    c.store(result + i + 2 * V::lanes);
    d.store(result + i + 3 * V::lanes);
  }
}

#if defined(__SSE2__)
/// Four fp32 as bf16 in the low half of each word, with the bits of base/float16.hpp.
[[nodiscard]] ZERO_ALWAYS_INLINE __m128i bf16_words(__m128 value) noexcept {
  __m128i const bits = _mm_castps_si128(value);
  __m128i const magnitude = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
  __m128i const nan = _mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7f800000));
  __m128i const odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  __m128i const rounded = _mm_add_epi32(bits, _mm_add_epi32(odd, _mm_set1_epi32(0x7fff)));
  __m128i const quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
  // The shift keeps the sign, so that the signed pack that follows saturates nothing.
  return _mm_srai_epi32(_mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded)),
                        16);
}

/// The same for bf16, which is the upper half of an fp32: interleaving with zeros widens it. Twice
/// as fast as packs, which load and widen half a vector at a time.
template <std::size_t Count, Isa I, class Pointer>
ZERO_ALWAYS_INLINE void sum_bf16(bf16* result,
                                 Pointer const* inputs,
                                 std::size_t at,
                                 int ranks) noexcept {
  __m128i const zeros = _mm_setzero_si128();
  auto const load = [](bf16 const* from) {
    return _mm_loadu_si128(reinterpret_cast<__m128i const*>(from));
  };
  for (std::size_t i = 0; i < Count; i += 16) {
    bf16 const* from = static_cast<bf16 const*>(inputs[0]) + at + i;
    __m128i x = load(from);
    __m128i y = load(from + 8);
    __m128 a = _mm_castsi128_ps(_mm_unpacklo_epi16(zeros, x));
    __m128 b = _mm_castsi128_ps(_mm_unpackhi_epi16(zeros, x));
    __m128 c = _mm_castsi128_ps(_mm_unpacklo_epi16(zeros, y));
    __m128 d = _mm_castsi128_ps(_mm_unpackhi_epi16(zeros, y));
    for (int rank = 1; rank < ranks; ++rank) {
      from = static_cast<bf16 const*>(inputs[rank]) + at + i;
      x = load(from);
      y = load(from + 8);
      a = _mm_add_ps(a, _mm_castsi128_ps(_mm_unpacklo_epi16(zeros, x)));
      b = _mm_add_ps(b, _mm_castsi128_ps(_mm_unpackhi_epi16(zeros, x)));
      c = _mm_add_ps(c, _mm_castsi128_ps(_mm_unpacklo_epi16(zeros, y)));
      d = _mm_add_ps(d, _mm_castsi128_ps(_mm_unpackhi_epi16(zeros, y)));
    }
    auto* const to = reinterpret_cast<__m128i*>(result + i);
    _mm_storeu_si128(to, _mm_packs_epi32(bf16_words(a), bf16_words(b)));
    _mm_storeu_si128(to + 1, _mm_packs_epi32(bf16_words(c), bf16_words(d)));
  }
}
#endif

template <class T, class Acc, Isa I, class Pointer>
ZERO_ALWAYS_INLINE void sum_tile(T* result,
                                 Pointer const* inputs,
                                 std::size_t at,
                                 int ranks) noexcept {
#if defined(__SSE2__)
  if constexpr (std::same_as<T, bf16> && std::same_as<Acc, float>) {
    sum_bf16<sum_width, I>(result, inputs, at, ranks);
    return;
  }
#endif
  if constexpr (std::same_as<Acc, float>) {
    sum_packs<T, sum_width, I>(result, inputs, at, ranks);
  } else {
    sum_elements<T, Acc, sum_width>(result, inputs, at, ranks);
  }
}

/// The sums of inputs[r][first, first + count), with the inputs typed or not.
template <class T, class Acc, Isa I, class Pointer>
void sum_range(T* out,
               Pointer const* inputs,
               std::size_t first,
               int ranks,
               std::size_t count,
               Store store) noexcept {
  bool const streaming = is_streaming(store, count * sizeof(T));
  std::size_t done = 0;
  auto const single = [&] {
    sum_elements<T, Acc, 1>(out + done, inputs, first + done, ranks);
    ++done;
  };
  if (streaming) {
    std::size_t const head = bytes_to_line(out) / sizeof(T);
    while (done < head && done < count) single();
  }
  alignas(line_bytes) T sums[sum_width];
  for (; done + sum_width <= count; done += sum_width) {
    sum_tile<T, Acc, I>(streaming ? sums : out + done, inputs, first + done, ranks);
    if (streaming) stream_lines<0>(out + done, sums, sizeof(sums) / line_bytes);
  }
  while (done < count) single();
  if (streaming) publish_streaming_stores();
}

template <class T, class Acc, Isa I = native>
void sum_untyped(void* out,
                 void const* const* inputs,
                 std::size_t first,
                 int ranks,
                 std::size_t count,
                 Store store) noexcept {
  sum_range<T, Acc, I>(static_cast<T*>(out), inputs, first, ranks, count, store);
}

/// The same in a plain loop: for types that buckets hardly ever have, a kernel of a kilobyte in
/// every program is not worth it.
template <class T, class Acc>
void sum_plainly(void* out,
                 void const* const* inputs,
                 std::size_t first,
                 int ranks,
                 std::size_t count,
                 Store /*store*/) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    sum_elements<T, Acc, 1>(static_cast<T*>(out) + i, inputs, first + i, ranks);
  }
}

}  // namespace detail

/// out[i] = inputs[0][i] + inputs[1][i] + ... in this order, added in `Acc` and rounded to `T`
/// once.
///
/// The result does not depend on the compiler's flags: there are only additions, so nothing can be
/// contracted, and no sum is split. Integers wrap.
/// @par Shapes  out [count]; inputs [ranks] pointers to [count]; `out` may be one of the inputs
///   (same start); any other overlap is undefined
/// @par Cost    reads ranks * count and writes count elements once; allocates nothing
template <class T, class Acc, Isa I = native>
void sum_ranks(T* out,
               T const* const* inputs,
               int ranks,
               std::size_t count,
               Store store = Store::automatic) noexcept {
  detail::sum_range<T, Acc, I>(out, inputs, 0, ranks, count, store);
}

/// `sum_ranks` for element types known at run time: sums inputs[r][first, first + count), where
/// `first` and `count` are in elements, into `out`.
using SumFunction = void (*)(void* out,
                             void const* const* inputs,
                             std::size_t first,
                             int ranks,
                             std::size_t count,
                             Store store) noexcept;

/// The kernel that sums elements of `dtype` in `accumulate`; null if there is none. There is one
/// for fp32 in fp32 and fp64, for 16-bit types in fp32, and for fp64 and integers in themselves:
/// each costs every program that communicates, so there are no more than precisions use.
ZERO_APART [[nodiscard]] SumFunction sum_function(DType dtype, DType accumulate) noexcept;

/// The squares of a sum whose elements come piece by piece.
struct SquaredSum {
  ExactSum* squares = nullptr;  ///< where they are added; null if nobody asks
  std::size_t left = 0;         ///< elements that still count
  RunningSquares run{};         ///< of the block that is not complete

  /// The next elements of the result.
  ZERO_APART void add(DType dtype, void const* result, std::size_t count) noexcept;
  /// No more come.
  void end() noexcept {
    if (squares != nullptr) run.end(*squares);
  }
};

/// `sum_function`, with the squares of the results added while these are in the nearest cache.
/// @par Cost  the sum's; squares take no memory traffic
ZERO_APART void sum_and_square(DType dtype,
                               DType accumulate,
                               void* out,
                               void const* const* inputs,
                               std::size_t first,
                               int ranks,
                               std::size_t count,
                               Store store,
                               SquaredSum& squared) noexcept;

#if ZERO_BODIES

ZERO_BODY SumFunction sum_function(DType dtype, DType accumulate) noexcept {
  switch (dtype) {
    case DType::f32:
      if (accumulate == DType::f32) return detail::sum_untyped<float, float>;
      if (accumulate == DType::f64) return detail::sum_plainly<float, double>;
      return nullptr;
    case DType::f64:
      if (accumulate == DType::f64) return detail::sum_plainly<double, double>;
      return nullptr;
    case DType::bf16:
      if (accumulate == DType::f32) return detail::sum_untyped<bf16, float>;
      return nullptr;
    case DType::f16:
      if (accumulate == DType::f32) return detail::sum_untyped<fp16, float>;
      return nullptr;
    case DType::i32:
      if (accumulate == DType::i32) return detail::sum_plainly<std::int32_t, std::int32_t>;
      return nullptr;
    case DType::i64:
      if (accumulate == DType::i64) return detail::sum_plainly<std::int64_t, std::int64_t>;
      return nullptr;
    case DType::u8: return nullptr;
  }
  return nullptr;
}

ZERO_BODY void sum_and_square(DType dtype,
                              DType accumulate,
                              void* out,
                              void const* const* inputs,
                              std::size_t first,
                              int ranks,
                              std::size_t count,
                              Store store,
                              SquaredSum& squared) noexcept {
  constexpr std::size_t tile_elements = 2 * block;
  alignas(detail::line_bytes) std::byte tile[tile_elements * sizeof(double)];
  SumFunction const sum = sum_function(dtype, accumulate);
  if (squared.squares == nullptr) return sum(out, inputs, first, ranks, count, store);
  std::size_t const element = size_of(dtype);
  bool const streaming = is_streaming(store, count * element);
  auto* to = static_cast<std::byte*>(out);
  for (std::size_t done = 0; done < count; done += tile_elements) {
    std::size_t const now = (std::min)(tile_elements, count - done);
    std::byte* const result = streaming ? tile : to;
    sum(result, inputs, first + done, ranks, now, Store::cached);
    squared.add(dtype, result, now);
    if (streaming) copy_streaming(to, tile, now * element);
    to += now * element;
  }
  if (streaming) publish_streaming_stores();
}

ZERO_BODY void SquaredSum::add(DType dtype, void const* result, std::size_t count) noexcept {
  std::size_t const counted = (std::min)(count, left);
  if (squares != nullptr) run.add(*squares, dtype, result, counted);
  left -= counted;
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::kernel
