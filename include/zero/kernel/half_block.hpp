/// @file
/// fp16 by the processor's own conversions, for translation units built without them.
#pragma once

#include "zero/base/dtype.hpp"
#include "zero/kernel/isa.hpp"

#include <cstddef>

#if defined(__x86_64__) && defined(__SSE2__) && !defined(__F16C__) && !defined(__CUDACC__)
#define ZERO_HALF_BLOCKS 1
#include <emmintrin.h>
#else
#define ZERO_HALF_BLOCKS 0
#endif

namespace zero::inline v0_1::kernel::detail {

/// A conversion takes a dozen instructions of SSE2, and one that every processor with AVX2 has. A
/// build for any x86-64 may use that one block by block after a look at the processor: the bits are
/// those of base/float16.hpp either way.
/// @tparam I  of the translation unit
template <Isa I, class T>
inline constexpr bool in_half_blocks = false;

#if ZERO_HALF_BLOCKS
template <Isa I>
  requires((I & isa::sse2) != 0 && (I & isa::f16c) == 0)
inline constexpr bool in_half_blocks<I, fp16> = true;

[[nodiscard]] inline bool converts_halves() noexcept { return __builtin_cpu_supports("avx2") != 0; }

// The compiler's names for what <immintrin.h> wraps: that header takes a quarter of a second.
using HalfWords __attribute__((vector_size(16))) = short;
using EightFloats __attribute__((vector_size(32))) = float;
using EightWords __attribute__((vector_size(32))) = int;

/// out[i] = float(in[i]); `count` is a multiple of 8. For processors that convert.
__attribute__((noinline, target("avx2,f16c"))) inline void widen_halves(
    float* out, fp16 const* in, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; i += 8) {
    HalfWords halves;
    __builtin_memcpy(&halves, in + i, sizeof halves);
    EightFloats const all = __builtin_ia32_vcvtph2ps256(halves);
    __builtin_memcpy(out + i, &all, sizeof all);
    // The instruction makes a NaN quiet, base/float16.hpp keeps it as it is.
    auto const nan = reinterpret_cast<EightFloats>(all != all);
    if (__builtin_expect(__builtin_ia32_movmskps256(nan), 0) == 0) continue;
    for (std::size_t j = i; j < i + 8; ++j) out[j] = static_cast<float>(in[j]);
  }
}

/// out[i] = fp16(in[i]); `count` is a multiple of 8. For processors that convert.
/// @param stream  around the caches; `out` is then aligned to 16 bytes
__attribute__((noinline, target("avx2,f16c"))) inline void narrow_halves(fp16* out,
                                                                         float const* in,
                                                                         std::size_t count,
                                                                         bool stream) noexcept {
  constexpr int nearest_even = 0;
  constexpr int quiet = 0x7fc00000;
  constexpr int sign = -0x7fffffff - 1;
  for (std::size_t i = 0; i < count; i += 8) {
    EightFloats all;
    __builtin_memcpy(&all, in + i, sizeof all);
    // The instruction keeps the upper bits of a NaN, base/float16.hpp keeps none.
    EightWords const nan = all != all;
    auto const bits = reinterpret_cast<EightWords>(all);
    EightWords const plain = (bits & ~nan) | (((bits & sign) | quiet) & nan);
    HalfWords const halves =
        __builtin_ia32_vcvtps2ph256(reinterpret_cast<EightFloats>(plain), nearest_even);
    auto* const to = reinterpret_cast<__m128i*>(out + i);
    if (stream) {
      _mm_stream_si128(to, reinterpret_cast<__m128i>(halves));
    } else {
      _mm_storeu_si128(to, reinterpret_cast<__m128i>(halves));
    }
  }
}
#else
// Named by templates that do not call them here.
inline bool converts_halves() noexcept;
inline void widen_halves(float* out, fp16 const* in, std::size_t count) noexcept;
inline void narrow_halves(fp16* out, float const* in, std::size_t count, bool stream) noexcept;
#endif

}  // namespace zero::inline v0_1::kernel::detail

#undef ZERO_HALF_BLOCKS
