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
  /// x, and one more where the mask holds.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words one_more(Words x,
                                                                          Mask mask) noexcept {
    return x + (mask ? 1u : 0u);
  }
  /// An integer from 0 on, or its opposite where x has the sign of negative numbers.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static Words with_sign_of(
      Floats x, Words magnitude) noexcept {
    Words const sign = 0u - (bits_of(x) >> 31);
    return (magnitude ^ sign) - sign;
  }
  /// The largest of all lanes, whose words are below 2^31.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static std::uint32_t largest(Words x) noexcept {
    return x;
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
  /// Integers that have room in a byte each, of four times as many lanes.
  template <class T>
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static void store_bytes(Words const (&x)[4], T* to) noexcept {
    for (std::size_t i = 0; i < 4; ++i) store(x[i], to + i);
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
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words one_more(Words x, Mask mask) noexcept {
    return x - reinterpret_cast<Words>(mask);
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words with_sign_of(Floats x, Words magnitude) noexcept {
    auto const sign = reinterpret_cast<Words>(reinterpret_cast<Mask>(x) >> 31);
    return (magnitude ^ sign) - sign;
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static std::uint32_t largest(Words x) noexcept {
    auto const larger = [](Words a, Words b) { return select(less(a, b), b, a); };
    if constexpr (count == 8) {
      x = larger(x, __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3));
      x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5));
      return larger(x, __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6))[0];
    } else {
      x = larger(x, __builtin_shufflevector(x, x, 2, 3, 0, 1));
      return larger(x, __builtin_shufflevector(x, x, 1, 0, 3, 2))[0];
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
  template <class T>
  ZERO_ALWAYS_INLINE static void store_bytes(Words const (&x)[4], T* to) noexcept {
#if defined(__AVX2__)
    if constexpr ((I & isa::avx) != 0) {
      auto const bits = [](Words w) { return reinterpret_cast<__m256i>(w); };
      auto const low = _mm256_packs_epi32(bits(x[0]), bits(x[1]));
      auto const high = _mm256_packs_epi32(bits(x[2]), bits(x[3]));
      // Each half of a vector has been packed by itself.
      auto const order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
      auto const bytes =
          std::is_signed_v<T> ? _mm256_packs_epi16(low, high) : _mm256_packus_epi16(low, high);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          _mm256_permutevar8x32_epi32(bytes, order));
      return;
    }
#elif defined(__SSE2__)
    if constexpr ((I & (isa::avx | isa::sse2)) == isa::sse2) {
      auto const bits = [](Words w) { return reinterpret_cast<__m128i>(w); };
      auto const low = _mm_packs_epi32(bits(x[0]), bits(x[1]));
      auto const high = _mm_packs_epi32(bits(x[2]), bits(x[3]));
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to),
          std::is_signed_v<T> ? _mm_packs_epi16(low, high) : _mm_packus_epi16(low, high));
      return;
    }
#endif
    for (std::size_t i = 0; i < 4; ++i) store(x[i], to + i * count);
  }
};
#endif

/// An integer in all lanes.
template <class L>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words words(
    std::uint32_t x) noexcept {
  return typename L::Words{} + x;
}

/// Calls f(lanes, i) for the elements [0, count): of as many from i on as `lanes` has.
template <Isa I, class F>
ZERO_ALWAYS_INLINE void in_lanes(std::size_t count, F const& f) {
  std::size_t const whole = count - count % Lanes<I>::count;
  for (std::size_t i = 0; i < whole; i += Lanes<I>::count) f(Lanes<I>{}, i);
  for (std::size_t i = whole; i < count; ++i) f(OneLane{}, i);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
