/// @file
/// Which instruction sets the host kernels of a translation unit are built for.
#pragma once

namespace zero::inline v0_1::kernel {

/// What the compiler was told about the processor: the number of floats per pack in the low byte,
/// one bit per instruction set above it.
///
/// Every kernel has this as a template parameter. Translation units built with different -m flags
/// then instantiate different names, and the linker cannot replace the body in one of them by the
/// body of another that the processor may not be able to run.
using Isa = unsigned;

namespace isa {
inline constexpr Isa lanes_mask = 0xff;
inline constexpr Isa sse2 = 1u << 8;
inline constexpr Isa sse4 = 1u << 9;
inline constexpr Isa avx = 1u << 10;
inline constexpr Isa avx2 = 1u << 11;
inline constexpr Isa fma = 1u << 12;
inline constexpr Isa avx512 = 1u << 13;
inline constexpr Isa f16c = 1u << 14;
inline constexpr Isa fast_math = 1u << 15;
/// Vectors without any intrinsic, for processors nothing is known about.
inline constexpr Isa generic = 4;
/// No vectors at all, for compilers that have none.
inline constexpr Isa plain = 4 | 1u << 16;
}  // namespace isa

/// The Isa of this translation unit's flags. Not `inline`: its value differs between units.
constexpr Isa native = 0u
#if defined(__CUDACC__)
                       | isa::plain
#elif defined(__AVX__)
                       | 8u | isa::sse2 | isa::avx
#elif defined(__SSE2__)
                       | 4u | isa::sse2
#else
                       | isa::generic
#endif
#if defined(__SSE4_1__)
                       | isa::sse4
#endif
#if defined(__AVX2__)
                       | isa::avx2
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
                       | isa::fma
#endif
#if defined(__F16C__)
                       | isa::f16c
#endif
#if defined(__AVX512VL__)
                       | isa::avx512
#endif
#if defined(__FAST_MATH__)
                       | isa::fast_math
#endif
    ;

}  // namespace zero::inline v0_1::kernel
