/// @file
/// A few floats side by side in a vector of the compiler.
///
/// Explicit vectors, because a plain loop is at the mercy of the consumer's flags: without
/// -fno-math-errno no compiler vectorises sqrt, and at -O2 some vectorise nothing.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/pack_arithmetic.hpp"

#include <cstddef>
#include <cstdint>

// All of <immintrin.h> costs a quarter of a second; below AVX a small header has what is needed.
#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

template <Isa I>
struct Lanes;

namespace detail {
/// Vector types by lanes. Spelled out, since g++ takes a vector whose size depends on a template
/// parameter for a scalar until it is instantiated.
template <std::size_t Lanes>
struct Vectors;
template <>
struct Vectors<2> {
  using Floats = float __attribute__((vector_size(8)));
  using Doubles = double __attribute__((vector_size(16)));
  using Ints = std::int32_t __attribute__((vector_size(8)));
  using Words = std::uint32_t __attribute__((vector_size(8)));
  using Halves = std::uint16_t __attribute__((vector_size(4)));
};
template <>
struct Vectors<4> {
  using Floats = float __attribute__((vector_size(16)));
  using Doubles = double __attribute__((vector_size(32)));
  using Ints = std::int32_t __attribute__((vector_size(16)));
  using Words = std::uint32_t __attribute__((vector_size(16)));
  using Halves = std::uint16_t __attribute__((vector_size(8)));
  using SignedHalves = std::int16_t __attribute__((vector_size(8)));
  using Bytes = std::uint8_t __attribute__((vector_size(4)));
  using SignedBytes = std::int8_t __attribute__((vector_size(4)));
};
template <>
struct Vectors<8> {
  using Floats = float __attribute__((vector_size(32)));
  using Doubles = double __attribute__((vector_size(64)));
  using Ints = std::int32_t __attribute__((vector_size(32)));
  using Words = std::uint32_t __attribute__((vector_size(32)));
  using Halves = std::uint16_t __attribute__((vector_size(16)));
  using SignedHalves = std::int16_t __attribute__((vector_size(16)));
  using Bytes = std::uint8_t __attribute__((vector_size(8)));
  using SignedBytes = std::int8_t __attribute__((vector_size(8)));
};
}  // namespace detail

/// `lanes` floats with the arithmetic a rule may use. Loads and stores convert bf16 and fp16 with
/// the very bits of base/float16.hpp and need no alignment.
template <Isa I>
class VectorPack : public PackArithmetic<VectorPack<I>> {
 public:
  static constexpr std::size_t lanes = I & isa::lanes_mask;

  using Floats = typename detail::Vectors<lanes>::Floats;
  using Ints = typename detail::Vectors<lanes>::Ints;
  using Words = typename detail::Vectors<lanes>::Words;
  using Halves = typename detail::Vectors<lanes>::Halves;

  /// The outcome of a comparison, lane by lane; feed it to `select`.
  struct Mask {
    using Value = VectorPack;
    Ints bits;
  };

  VectorPack() = default;
  /// All lanes equal. Implicit, so that floats mix with packs; value − 0 keeps the sign of −0.
  ZERO_ALWAYS_INLINE VectorPack(float value) noexcept : floats_(value - Floats{}) {}
  ZERO_ALWAYS_INLINE explicit VectorPack(Floats floats) noexcept : floats_(floats) {}

  [[nodiscard]] ZERO_ALWAYS_INLINE Floats vector() const noexcept { return floats_; }

  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack load(float const* from) noexcept {
    VectorPack result;
    __builtin_memcpy(&result.floats_, from, sizeof(Floats));
    return result;
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack load(bf16 const* from) noexcept {
    return VectorPack(reinterpret_cast<Floats>(raised(from)));
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack load(fp16 const* from) noexcept {
#if defined(__F16C__)
    if constexpr ((I & isa::f16c) != 0) {
      __m256 const all = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<__m128i const*>(from)));
      // The instruction makes a NaN quiet, base/float16.hpp keeps it as it is.
      int const nan = _mm256_movemask_ps(_mm256_cmp_ps(all, all, _CMP_UNORD_Q));
      if (__builtin_expect(nan, 0) == 0) return VectorPack(reinterpret_cast<Floats>(all));
    }
#endif
    return VectorPack(of_fp16(raised(from)));
  }

  ZERO_ALWAYS_INLINE void store(float* to) const noexcept {
    __builtin_memcpy(to, &floats_, sizeof(Floats));
  }
  ZERO_ALWAYS_INLINE void store(bf16* to) const noexcept { put(lowered(bf16_words()), to); }
  ZERO_ALWAYS_INLINE void store(fp16* to) const noexcept { put(fp16_halves(), to); }
  /// As 16 bits of a type that has a rounding of its own.
  template <class Half>
  ZERO_ALWAYS_INLINE void store(Half* to) const noexcept {
    put(halves(to), to);
  }

  /// Stores `low` and then `high` around the caches, for outputs too large to be found there later.
  /// `to` must be aligned to `stream_alignment` bytes, and `fence()` must run before another thread
  /// may read.
  static constexpr std::size_t stream_alignment = 16;
  template <class Half>
  ZERO_ALWAYS_INLINE static void stream(VectorPack low, VectorPack high, Half* to) noexcept {
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      __m128i* const lines = reinterpret_cast<__m128i*>(to);
      _mm_stream_si128(lines, reinterpret_cast<__m128i>(low.halves(to)));
      _mm_stream_si128(lines + 1, reinterpret_cast<__m128i>(high.halves(to)));
      return;
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to),
                       _mm_packs_epi32(reinterpret_cast<__m128i>(low.words(to)),
                                       reinterpret_cast<__m128i>(high.words(to))));
      return;
    }
#endif
    low.store(to);
    high.store(to + lanes);
  }

  ZERO_ALWAYS_INLINE static void fence() noexcept {
#if defined(__SSE2__)
    _mm_sfence();
#endif
  }

  /// The functions below are what zero/base/math.hpp calls.
  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack select(Mask mask,
                                                            VectorPack yes,
                                                            VectorPack no) noexcept {
    return VectorPack(reinterpret_cast<Floats>(blend(
        mask.bits, reinterpret_cast<Words>(yes.floats_), reinterpret_cast<Words>(no.floats_))));
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack abs(VectorPack a) noexcept {
    return VectorPack(reinterpret_cast<Floats>(reinterpret_cast<Words>(a.floats_) & 0x7fffffffu));
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack sqrt(VectorPack a) noexcept {
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      return VectorPack(
          reinterpret_cast<Floats>(_mm256_sqrt_ps(reinterpret_cast<__m256>(a.floats_))));
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      return VectorPack(reinterpret_cast<Floats>(_mm_sqrt_ps(reinterpret_cast<__m128>(a.floats_))));
    }
#endif
    for (std::size_t i = 0; i < lanes; ++i) a.floats_[i] = __builtin_sqrtf(a.floats_[i]);
    return a;
  }
  /// a * b + c, rounded once where the Isa has a fused multiply-add and twice where it has not.
  [[nodiscard]] ZERO_ALWAYS_INLINE static VectorPack mul_add(VectorPack a,
                                                             VectorPack b,
                                                             VectorPack c) noexcept {
    if constexpr ((I & isa::fma) == 0) return a * b + c;
#if defined(__FMA__)
    if constexpr ((I & isa::avx) != 0) {
      return VectorPack(
          reinterpret_cast<Floats>(_mm256_fmadd_ps(reinterpret_cast<__m256>(a.floats_),
                                                   reinterpret_cast<__m256>(b.floats_),
                                                   reinterpret_cast<__m256>(c.floats_))));
    }
#endif
    for (std::size_t i = 0; i < lanes; ++i) {
      a.floats_[i] = __builtin_fmaf(a.floats_[i], b.floats_[i], c.floats_[i]);
    }
    return a;
  }

  /// Half of the lanes as doubles.
  using Doubles = typename detail::Vectors<lanes / 2>::Doubles;
  [[nodiscard]] ZERO_ALWAYS_INLINE Doubles low_doubles() const noexcept { return doubles<0>(); }
  [[nodiscard]] ZERO_ALWAYS_INLINE Doubles high_doubles() const noexcept { return doubles<1>(); }

 private:
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words blend(Ints mask, Words yes, Words no) noexcept {
    Words const bits = reinterpret_cast<Words>(mask);
    return (bits & yes) | (~bits & no);
  }

  template <int Half>
  [[nodiscard]] ZERO_ALWAYS_INLINE Doubles doubles() const noexcept {
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      __m256 const all = reinterpret_cast<__m256>(floats_);
      return reinterpret_cast<Doubles>(_mm256_cvtps_pd(_mm256_extractf128_ps(all, Half)));
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      __m128 const all = reinterpret_cast<__m128>(floats_);
      return reinterpret_cast<Doubles>(_mm_cvtps_pd(Half == 0 ? all : _mm_movehl_ps(all, all)));
    }
#endif
    Doubles result;
    for (std::size_t i = 0; i < lanes / 2; ++i) {
      result[i] = static_cast<double>(floats_[Half * (lanes / 2) + i]);
    }
    return result;
  }

  /// Sixteen bits per lane, moved into the upper half of a word.
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words raised(void const* from) noexcept {
#if defined(__SSE2__) && !defined(__AVX__)
    if constexpr ((I & isa::sse2) != 0) {
      __m128i const halves = _mm_loadl_epi64(static_cast<__m128i const*>(from));
      return reinterpret_cast<Words>(_mm_unpacklo_epi16(_mm_setzero_si128(), halves));
    }
#endif
    Halves halves;
    __builtin_memcpy(&halves, from, sizeof(Halves));
    return __builtin_convertvector(halves, Words) << 16;
  }

  /// The lower sixteen bits of every lane. `words` are sign-extended from sixteen bits: below
  /// SSE4.1 only the packing of signed numbers is there, and it saturates.
  [[nodiscard]] ZERO_ALWAYS_INLINE static Halves lowered(Ints words) noexcept {
    Halves halves;
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      __m256i const all = reinterpret_cast<__m256i>(words);
      return reinterpret_cast<Halves>(
          _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extractf128_si256(all, 1)));
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      __m128i const all = reinterpret_cast<__m128i>(words);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(&halves), _mm_packs_epi32(all, all));
      return halves;
    }
#endif
    halves = __builtin_convertvector(words, Halves);
    return halves;
  }

  ZERO_ALWAYS_INLINE static void put(Halves halves, void* to) noexcept {
    __builtin_memcpy(to, &halves, sizeof(Halves));
  }

  /// All ones where a lane is a NaN. From the bits: -ffast-math assumes that no float is one.
  [[nodiscard]] ZERO_ALWAYS_INLINE Words nan_mask() const noexcept {
#if defined(__SSE2__) && !defined(__AVX__)
    if constexpr ((I & isa::sse2) != 0) {
      __m128 const all = reinterpret_cast<__m128>(floats_);
      return reinterpret_cast<Words>(_mm_cmpunord_ps(all, all));
    }
#endif
    return reinterpret_cast<Words>(reinterpret_cast<Ints>(bits_of(floats_) & 0x7fffffffu) >
                                   0x7f800000);
  }

  [[nodiscard]] ZERO_ALWAYS_INLINE static Words bits_of(Floats floats) noexcept {
    return reinterpret_cast<Words>(floats);
  }

  // The branches of base/float16.hpp become blends. Magnitudes have no sign bit, so that they
  // compare as signed numbers: SSE2 has no other comparison.
  [[nodiscard]] ZERO_ALWAYS_INLINE Ints bf16_words() const noexcept {
    Words const bits = bits_of(floats_);
    // A NaN is not rounded, which might overflow it into a number, but made quiet.
    Words const nan = nan_mask();
    Words const rounding = (((bits >> 16) & 1u) + 0x7fffu) & ~nan;
    return reinterpret_cast<Ints>((bits + rounding) | (nan & 0x400000u)) >> 16;
  }

  [[nodiscard]] ZERO_ALWAYS_INLINE Ints fp16_words() const noexcept {
    Words const bits = bits_of(floats_);
    // Whatever is 65536 or more becomes 65536, of which the rounding makes infinity.
    Words const magnitude = clamped_to_65536(reinterpret_cast<Floats>(bits & 0x7fffffffu));
    // Adding 2¹³ times its power of two leaves of a number what fp16 keeps, rounded to even by the
    // addition itself: `units` in the last place. Below 2⁻¹⁴ the unit no longer shrinks.
    Words const exponent = at_least_normal(magnitude & 0x7f800000u);
    Words const power = exponent + (13u << 23);
    Floats const sum = reinterpret_cast<Floats>(magnitude) + reinterpret_cast<Floats>(power);
    Words const units = bits_of(sum) - power;
    Words const result = (exponent >> 13) - (0x38800000u >> 13) + units;
    Ints const sign = (reinterpret_cast<Ints>(bits) >> 16) & -0x8000;
    return reinterpret_cast<Ints>(result | (nan_mask() & 0x200u)) | sign;
  }

  [[nodiscard]] ZERO_ALWAYS_INLINE Halves fp16_halves() const noexcept {
#if defined(__F16C__)
    if constexpr ((I & isa::f16c) != 0) {
      // The instruction keeps the upper bits of a NaN, base/float16.hpp keeps none.
      Words const bits = bits_of(floats_);
      Words const no_payload = (bits & 0x80000000u) | 0x7fc00000u;
      Words const plain = blend(reinterpret_cast<Ints>(nan_mask()), no_payload, bits);
      return reinterpret_cast<Halves>(
          _mm256_cvtps_ph(reinterpret_cast<__m256>(plain), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    return lowered(fp16_words());
  }

  // By the type of the pointer, which is not read.
  [[nodiscard]] ZERO_ALWAYS_INLINE Ints words(bf16 const*) const noexcept { return bf16_words(); }
  [[nodiscard]] ZERO_ALWAYS_INLINE Ints words(fp16 const*) const noexcept { return fp16_words(); }
  template <class Half>
  [[nodiscard]] ZERO_ALWAYS_INLINE Ints words(Half const*) const noexcept {
    Words const narrow = Half::template rounded<Lanes<I>>(bits_of(floats_));
    return reinterpret_cast<Ints>(narrow << 16) >> 16;
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE Halves halves(bf16 const*) const noexcept {
    return lowered(bf16_words());
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE Halves halves(fp16 const*) const noexcept {
    return fp16_halves();
  }
  template <class Half>
  [[nodiscard]] ZERO_ALWAYS_INLINE Halves halves(Half const* to) const noexcept {
    return lowered(words(to));
  }

  /// The larger of a power of two and fp16's smallest normal number, as bits.
  [[nodiscard]] ZERO_ALWAYS_INLINE static Words at_least_normal(Words power) noexcept {
#if defined(__SSE2__) && !defined(__AVX__)
    if constexpr ((I & isa::sse2) != 0) {
      __m128 const all = reinterpret_cast<__m128>(power);
      return reinterpret_cast<Words>(_mm_max_ps(all, _mm_set1_ps(0x1p-14f)));
    }
#endif
    constexpr std::uint32_t smallest = 0x38800000u;
    Ints const small = reinterpret_cast<Ints>(power) < static_cast<std::int32_t>(smallest);
    return blend(small, Words{} + smallest, power);
  }

  [[nodiscard]] ZERO_ALWAYS_INLINE static Words clamped_to_65536(Floats magnitude) noexcept {
#if defined(__SSE2__) && !defined(__AVX__)
    if constexpr ((I & isa::sse2) != 0) {
      __m128 const all = reinterpret_cast<__m128>(magnitude);
      return reinterpret_cast<Words>(_mm_min_ps(all, _mm_set1_ps(65536.f)));
    }
#endif
    Ints const bits = reinterpret_cast<Ints>(magnitude);
    constexpr std::uint32_t limit = 0x47800000u;
    return blend(bits > static_cast<std::int32_t>(limit), Words{} + limit, bits_of(magnitude));
  }

  /// `half` as `raised` leaves it.
  [[nodiscard]] ZERO_ALWAYS_INLINE static Floats of_fp16(Words half) noexcept {
    Words const magnitude = half & 0x7fff0000u;
    Ints const order = reinterpret_cast<Ints>(magnitude);
    constexpr std::uint32_t rebias = 0x38000000u;
    Words const special = reinterpret_cast<Words>(order > 0x7bff0000) & rebias;
    Words const normal = (magnitude >> 3) + rebias + special;
    Floats const subnormal = __builtin_convertvector(order, Floats) * 0x1p-40f;
    Words const result = blend(order < 0x04000000, bits_of(subnormal), normal);
    return reinterpret_cast<Floats>(result | (half ^ magnitude));
  }

  Floats floats_;
};

}  // namespace zero::inline ZERO_NAMESPACE::kernel
