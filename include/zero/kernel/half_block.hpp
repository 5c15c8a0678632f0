/// @file
/// fp16 by the processor's own conversions, for translation units built without them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/isa.hpp"

#include <concepts>
#include <cstddef>

#if defined(__x86_64__) && defined(__SSE2__) && !defined(__F16C__) && !defined(__CUDACC__)
#define ZERO_HALF_BLOCKS 1
#include <emmintrin.h>
#else
#define ZERO_HALF_BLOCKS 0
#endif

namespace zero::inline ZERO_NAMESPACE::kernel::detail {

/// A conversion takes a dozen instructions of SSE2, and one that every processor with AVX2 has. A
/// build for any x86-64 may use that one block by block after a look at the processor: the bits are
/// those of base/float16.hpp either way.
/// @tparam I  of the translation unit
template <Isa I>
struct HalfBlocks {
  static constexpr bool present = false;
  static bool usable() noexcept { return false; }
  static void widen(float*, fp16 const*, std::size_t) noexcept {}
  static void narrow(fp16*, float const*, std::size_t, bool) noexcept {}
};

#if ZERO_HALF_BLOCKS
template <Isa I>
  requires((I & isa::sse2) != 0 && (I & isa::f16c) == 0)
struct HalfBlocks<I> {
  static constexpr bool present = true;
  /// Does this processor convert?
  [[nodiscard]] static bool usable() noexcept { return __builtin_cpu_supports("avx2") != 0; }

  /// out[i] = float(in[i]); `count` is a multiple of 8.
  __attribute__((noinline, target("avx2,f16c"))) static void widen(float* out,
                                                                   fp16 const* in,
                                                                   std::size_t count) noexcept {
    for (std::size_t i = 0; i < count; i += 8) {
      Floats all;
      // Compilers do not agree on a name for it, and clang 14 converts again for each comparison.
      asm("vcvtph2ps {%1, %0|%0, %1}" : "=x"(all) : "m"(*reinterpret_cast<Halves const*>(in + i)));
      __builtin_memcpy(out + i, &all, sizeof all);
      // The instruction makes a NaN quiet, base/float16.hpp keeps it as it is.
      auto const nan = reinterpret_cast<Floats>(all != all);
      if (__builtin_expect(__builtin_ia32_movmskps256(nan), 0) == 0) continue;
      for (std::size_t j = i; j < i + 8; ++j) out[j] = static_cast<float>(in[j]);
    }
  }

  /// out[i] = fp16(in[i]); `count` is a multiple of 8.
  /// @param stream  around the caches; `out` is then aligned to 16 bytes
  static void narrow(fp16* out, float const* in, std::size_t count, bool stream) noexcept {
    // Clang refuses a direct call of the other one where `flatten` asks for all calls inline.
    narrow_all(out, in, count, stream);
  }

 private:
  // The compiler's names for what <immintrin.h> wraps: that header takes a quarter of a second.
  using Words __attribute__((vector_size(16))) = short;
  using Halves __attribute__((vector_size(16), aligned(2), may_alias)) = short;
  using Floats __attribute__((vector_size(32))) = float;
  using Ints __attribute__((vector_size(32))) = int;

  /// What `narrow` does.
  __attribute__((noinline, target("avx2,f16c"))) static void narrow_all(fp16* out,
                                                                        float const* in,
                                                                        std::size_t count,
                                                                        bool stream) noexcept {
    constexpr int nearest_even = 0;
    constexpr int quiet = 0x7fc00000;
    constexpr int sign = -0x7fffffff - 1;
    for (std::size_t i = 0; i < count; i += 8) {
      Floats all;
      __builtin_memcpy(&all, in + i, sizeof all);
      // The instruction keeps the upper bits of a NaN, base/float16.hpp keeps none.
      Ints const nan = all != all;
      auto const bits = reinterpret_cast<Ints>(all);
      Ints const plain = (bits & ~nan) | (((bits & sign) | quiet) & nan);
      Words const halves =
          __builtin_ia32_vcvtps2ph256(reinterpret_cast<Floats>(plain), nearest_even);
      auto* const to = reinterpret_cast<__m128i*>(out + i);
      if (stream) {
        _mm_stream_si128(to, reinterpret_cast<__m128i>(halves));
      } else {
        _mm_storeu_si128(to, reinterpret_cast<__m128i>(halves));
      }
    }
  }
};
#endif

/// True if arrays of T go through blocks.
template <Isa I, class T>
inline constexpr bool in_half_blocks = HalfBlocks<I>::present&& std::same_as<T, fp16>;

}  // namespace zero::inline ZERO_NAMESPACE::kernel::detail

#undef ZERO_HALF_BLOCKS
