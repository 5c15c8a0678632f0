/// @file
/// Numbers and their bits, one or as many as a pack has.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/pack.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

/// One number, which is what a device computes with, and what is left of an array on the host.
///
/// Functions that look at the bits of numbers have this or `Lanes` as a parameter, and are written
/// once: with the operators of both, and with what is here. Each of these rounds once or not at
/// all, so that an element has the same bits alone, among others, and on a device.
struct OneLane {
  static constexpr std::size_t count = 1;  ///< numbers
  using Floats = float;                    ///< the numbers
  using Words = std::uint32_t;             ///< their bits, or integers
  using Mask = bool;                       ///< the outcome of a comparison

  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words bits_of(Floats x) noexcept {
    return std::bit_cast<Words>(x);
  }
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Floats of_bits(Words x) noexcept {
    return std::bit_cast<Floats>(x);
  }
  /// Integers with a sign, as numbers; up to 2^24 exactly.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Floats number(Words x) noexcept {
    return static_cast<Floats>(static_cast<std::int32_t>(x));
  }
  /// Numbers from 0 on without their fraction, as integers.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words truncated(Floats x) noexcept {
    return static_cast<Words>(static_cast<std::int32_t>(x));
  }
  /// Rounded correctly, whatever the flags of nvcc.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Floats sqrt(Floats x) noexcept {
#if defined(__CUDA_ARCH__)
    return __fsqrt_rn(x);
#else
    return math::sqrt(x);
#endif
  }
  /// a < b, both below 2^31.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Mask less(Words a, Words b) noexcept {
    return a < b;
  }
  /// `yes` where the mask holds, `no` elsewhere.
  template <class T>
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static T select(Mask mask,
                                                                    T yes,
                                                                    T no) noexcept {
    return mask ? yes : no;
  }
  /// The larger of both, which are below 2^31.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words larger(Words a, Words b) noexcept {
    return a < b ? b : a;
  }
  /// a where that is smaller, else b: also where they do not compare.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Floats smaller(Floats a,
                                                                          Floats b) noexcept {
    return a < b ? a : b;
  }
  /// Does the mask hold in any lane?
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static bool any(Mask mask) noexcept {
    return mask;
  }
  /// x, and one more where the mask holds.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words one_more(Words x,
                                                                          Mask mask) noexcept {
    return x + (mask ? 1u : 0u);
  }
  /// An integer from 0 on, or its opposite where x has the sign of negative numbers. Where all bits
  /// of x are 0, the integer has to be 0.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words with_sign_of(
      Floats x, Words magnitude) noexcept {
    Words const sign = 0u - (bits_of(x) >> 31);
    return (magnitude ^ sign) - sign;
  }
  /// The largest of all lanes of each of as many as there are lanes, below 2^31.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words largest_of_each(
      Words const (&x)[1]) noexcept {
    return x[0];
  }
  /// The bits of floats, or integers, widened: those with a sign keep it. No alignment is needed.
  template <class T>
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words load(T const* from) noexcept {
    T element;
    __builtin_memcpy(&element, from, sizeof(T));
    if constexpr (std::is_same_v<T, float>) return bits_of(element);
    return static_cast<Words>(element);
  }
  /// Floats of these bits, or integers of the lowest of them.
  template <class T>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static void store(Words x, T* to) noexcept {
    T element;
    if constexpr (std::is_same_v<T, float>) element = of_bits(x);
    if constexpr (!std::is_same_v<T, float>) element = static_cast<T>(x);
    __builtin_memcpy(to, &element, sizeof(T));
  }
  /// The same of several times as many lanes, where integers have room in an element each.
  template <std::size_t n, class T>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static void store_all(Words const (&x)[n], T* to) noexcept {
    for (std::size_t i = 0; i < n; ++i) store(x[i], to + i);
  }
};

#if defined(__CUDACC__)
/// nvcc knows no vectors.
template <Isa I = native>
using Lanes = OneLane;
#else
namespace detail {
/// As many elements of an array as there are words in a vector.
template <class V, class T>
using Elements = std::conditional_t<
    std::is_same_v<T, float>,
    typename V::Floats,
    std::conditional_t<
        std::is_same_v<T, std::uint16_t>,
        typename V::Halves,
        std::conditional_t<std::is_signed_v<T>, typename V::SignedBytes, typename V::Bytes>>>;
}  // namespace detail

/// As many numbers as a pack of floats has: what `OneLane` has, of each.
template <Isa I = native>
struct Lanes {
  static constexpr std::size_t count = I & isa::lanes_mask;
  using Vectors = detail::Vectors<count>;
  using Floats = typename Vectors::Floats;
  using Words = typename Vectors::Words;
  using Mask = typename Vectors::Ints;

  [[nodiscard]] ZERO_ALWAYS_INLINE static Words bits_of(Floats x) noexcept {
    return reinterpret_cast<Words>(x);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Floats of_bits(Words x) noexcept {
    return reinterpret_cast<Floats>(x);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Floats number(Words x) noexcept {
    return __builtin_convertvector(reinterpret_cast<Mask>(x), Floats);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words truncated(Floats x) noexcept {
    return reinterpret_cast<Words>(__builtin_convertvector(x, Mask));
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Floats sqrt(Floats x) noexcept {
    return VectorPack<I>::sqrt(VectorPack<I>(x)).vector();
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Mask less(Words a, Words b) noexcept {
    return reinterpret_cast<Mask>(a) < reinterpret_cast<Mask>(b);
  }
  template <class T>
  [[nodiscard]] ZERO_ALWAYS_INLINE static T select(Mask mask, T yes, T no) noexcept {
    return mask ? yes : no;
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words larger(Words a, Words b) noexcept {
#if defined(__AVX2__)
    if constexpr ((I & isa::avx) != 0) {
      return reinterpret_cast<Words>(
          _mm256_max_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
    }
#endif
    return select(less(a, b), b, a);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Floats smaller(Floats a, Floats b) noexcept {
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      return reinterpret_cast<Floats>(
          _mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      return reinterpret_cast<Floats>(
          _mm_min_ps(reinterpret_cast<__m128>(a), reinterpret_cast<__m128>(b)));
    }
#endif
    return select(a < b, a, b);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static bool any(Mask mask) noexcept {
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      return _mm256_movemask_ps(reinterpret_cast<__m256>(mask)) != 0;
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      return _mm_movemask_ps(reinterpret_cast<__m128>(mask)) != 0;
    }
#endif
    std::int32_t bits = 0;
    for (std::size_t i = 0; i < count; ++i) bits |= mask[i];
    return bits != 0;
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words one_more(Words x, Mask mask) noexcept {
    return x - reinterpret_cast<Words>(mask);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words with_sign_of(Floats x, Words magnitude) noexcept {
#if defined(__AVX2__)
    if constexpr ((I & isa::avx) != 0) {
      return reinterpret_cast<Words>(
          _mm256_sign_epi32(reinterpret_cast<__m256i>(magnitude), reinterpret_cast<__m256i>(x)));
    }
#endif
    auto const sign = reinterpret_cast<Words>(reinterpret_cast<Mask>(x) >> 31);
    return (magnitude ^ sign) - sign;
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words largest_of_each(Words const (&x)[count]) noexcept {
    // As for a transposition, but for the larger of every two.
    auto const of_two = [](Words a, Words b) {
      if constexpr (count == 8) {
        return larger(__builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13),
                      __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15));
      } else {
        return larger(__builtin_shufflevector(a, b, 0, 4, 1, 5),
                      __builtin_shufflevector(a, b, 2, 6, 3, 7));
      }
    };
    auto const of_four = [&](std::size_t i) {
      Words const a = of_two(x[i], x[i + 1]);
      Words const b = of_two(x[i + 2], x[i + 3]);
      if constexpr (count == 8) {
        return larger(__builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13),
                      __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15));
      } else {
        return larger(__builtin_shufflevector(a, b, 0, 1, 4, 5),
                      __builtin_shufflevector(a, b, 2, 3, 6, 7));
      }
    };
    if constexpr (count == 8) {
      Words const a = of_four(0);
      Words const b = of_four(4);
      return larger(__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11),
                    __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15));
    } else {
      return of_four(0);
    }
  }
  template <class T>
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words load(T const* from) noexcept {
#if defined(__AVX2__)
    // In one instruction, which compilers do not find.
    if constexpr ((I & isa::avx) != 0 && !std::is_same_v<T, float>) {
      auto const* const at = reinterpret_cast<__m128i const*>(from);
      return reinterpret_cast<Words>(sizeof(T) == 2 ? _mm256_cvtepu16_epi32(_mm_loadu_si128(at))
                                     : std::is_signed_v<T>
                                         ? _mm256_cvtepi8_epi32(_mm_loadl_epi64(at))
                                         : _mm256_cvtepu8_epi32(_mm_loadl_epi64(at)));
    }
#endif
    detail::Elements<Vectors, T> elements;
    __builtin_memcpy(&elements, from, sizeof(elements));
    // By way of 16 bits, or g++ takes them one by one.
    if constexpr (std::is_same_v<T, float>) {
      return bits_of(elements);
    } else if constexpr (sizeof(T) == 2) {
      return __builtin_convertvector(elements, Words);
    } else if constexpr (std::is_signed_v<T>) {
      using Halves = typename Vectors::SignedHalves;
      return reinterpret_cast<Words>(
          __builtin_convertvector(__builtin_convertvector(elements, Halves), Mask));
    } else {
      using Halves = typename Vectors::Halves;
      return __builtin_convertvector(__builtin_convertvector(elements, Halves), Words);
    }
  }
  template <class T>
  ZERO_ALWAYS_INLINE static void store(Words x, T* to) noexcept {
    if constexpr (std::is_same_v<T, float>) {
      __builtin_memcpy(to, &x, sizeof(x));
    } else {
      auto const halves = __builtin_convertvector(x, typename Vectors::Halves);
      auto const narrow = __builtin_convertvector(halves, detail::Elements<Vectors, T>);
      __builtin_memcpy(to, &narrow, sizeof(narrow));
    }
  }
  template <std::size_t n, class T>
  ZERO_ALWAYS_INLINE static void store_all(Words const (&x)[n], T* to) noexcept {
#if defined(__AVX2__)
    // Each half of a vector is packed by itself: what is in between has to be moved.
    if constexpr ((I & isa::avx) != 0 && n % 4 == 0 && sizeof(T) == 1) {
      auto const bits = [&](std::size_t i) { return reinterpret_cast<__m256i>(x[i]); };
      auto const order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      for (std::size_t i = 0; i < n; i += 4) {
        auto const low = _mm256_packs_epi32(bits(i), bits(i + 1));
        auto const high = _mm256_packs_epi32(bits(i + 2), bits(i + 3));
        auto const bytes =
            std::is_signed_v<T> ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i / 4,
                            _mm256_permutevar8x32_epi32(bytes, order));
      }
      return;
    } else if constexpr ((I & isa::avx) != 0 && n % 2 == 0 && std::is_same_v<T, std::uint16_t>) {
      auto const bits = [&](std::size_t i) { return reinterpret_cast<__m256i>(x[i]); };
      for (std::size_t i = 0; i < n; i += 2) {
        auto const halves = _mm256_packus_epi32(bits(i), bits(i + 1));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to) + i / 2,
                            _mm256_permute4x64_epi64(halves, 0xd8));
      }
      return;
    }
#elif defined(__SSE2__)
    if constexpr ((I & (isa::avx | isa::sse2)) == isa::sse2 && sizeof(T) == 1 && n == 4) {
      auto const bits = [&](std::size_t i) { return reinterpret_cast<__m128i>(x[i]); };
      auto const low = _mm_packs_epi32(bits(0), bits(1));
      auto const high = _mm_packs_epi32(bits(2), bits(3));
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to),
          std::is_signed_v<T> ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high));
      return;
    }
#endif
    for (std::size_t i = 0; i < n; ++i) store(x[i], to + i * count);
  }
};
#endif

/// An integer in all lanes.
template <class L>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words words(
    std::uint32_t x) noexcept {
  return typename L::Words{} + x;
}

/// Calls f(lanes, numbers, i) for the elements [0, count), of four vectors at a time and then one
/// by one: element i + k · L::count is the first of vector k, for each k of the
/// `std::index_sequence`. What is written out for these needs no inner loop, which not every
/// compiler unrolls.
template <Isa I, class F>
ZERO_ALWAYS_INLINE void in_lanes(std::size_t count, F const& f) {
  constexpr std::size_t at_once = 4 * Lanes<I>::count;
  std::size_t const whole = count - count % at_once;
  for (std::size_t i = 0; i < whole; i += at_once) f(Lanes<I>{}, std::make_index_sequence<4>{}, i);
  for (std::size_t i = whole; i < count; ++i) f(OneLane{}, std::make_index_sequence<1>{}, i);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
