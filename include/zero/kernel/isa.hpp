/// @file
/// Which vectors and instructions the host kernels of a translation unit use.
#pragma once

#include "zero/base/config.hpp"

namespace zero::inline ZERO_NAMESPACE::kernel {

/// The number of floats per pack in the low byte, one bit per instruction set that kernels choose
/// code by above it. Kernels have it as a template parameter, so that tests run the code for other
/// processors too.
using Isa = unsigned;

namespace isa {
inline constexpr Isa lanes_mask = 0xff;
inline constexpr Isa sse2 = 1u << 8;
inline constexpr Isa avx = 1u << 9;
inline constexpr Isa fma = 1u << 10;
inline constexpr Isa f16c = 1u << 11;
/// Vectors without any intrinsic, for processors nothing is known about.
inline constexpr Isa generic = 4;
/// No vectors at all, for compilers that have none.
inline constexpr Isa plain = 4 | 1u << 12;
}  // namespace isa

/// The Isa of this translation unit. Not `inline`: units of nvcc have another, under the same
/// flags.
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
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
                       | isa::fma
#endif
#if defined(__F16C__)
                       | isa::f16c
#endif
    ;

}  // namespace zero::inline ZERO_NAMESPACE::kernel
