/// @file
/// Flags in names: translation units built with different ones share a program, not code.
#pragma once

// Says which standard library this is.
#include <cstddef>

/// `yes` where `macro` is defined as 1, `no` elsewhere.
#define ZERO_IF(macro, yes, no) ZERO_IF_VALUE(macro, yes, no)
#define ZERO_IF_VALUE(value, yes, no) ZERO_SECOND(ZERO_COMMA_##value yes, no, )
#define ZERO_COMMA_1 ,
#define ZERO_SECOND(...) ZERO_SECOND_OF(__VA_ARGS__)
#define ZERO_SECOND_OF(first, second, ...) second

/// `name` with the value of `macro` behind it where that is 1, 2 or 3, nothing elsewhere.
#define ZERO_LEVEL(macro, name) ZERO_LEVEL_VALUE(macro, name)
#define ZERO_LEVEL_VALUE(value, name) ZERO_SECOND(ZERO_LEVEL_##value name##value, , )
#define ZERO_LEVEL_1 ,
#define ZERO_LEVEL_2 ,
#define ZERO_LEVEL_3 ,

/// One name of eight parts, any of which may be empty.
#define ZERO_JOIN(a, b, c, d, e, f, g, h) ZERO_JOIN_PARTS(a, b, c, d, e, f, g, h)
#define ZERO_JOIN_PARTS(a, b, c, d, e, f, g, h) a##b##c##d##e##f##g##h

/// What a name is as text.
#define ZERO_TEXT(name) ZERO_TEXT_OF(name)
#define ZERO_TEXT_OF(name) #name

// clang-format off

// Each of a chain includes those before.
#define ZERO_FLAGS_VECTORS \
  ZERO_IF(__AVX512F__, _avx512f, ZERO_IF(__AVX2__, _avx2, ZERO_IF(__AVX__, _avx, \
  ZERO_IF(__SSE4_2__, _sse4_2, ZERO_IF(__SSE4_1__, _sse4_1, ZERO_IF(__SSSE3__, _ssse3, \
  ZERO_IF(__SSE3__, _sse3, )))))))
#define ZERO_FLAGS_AVX512 ZERO_JOIN( \
  ZERO_IF(__AVX512BW__, _bw, ), ZERO_IF(__AVX512CD__, _cd, ), ZERO_IF(__AVX512DQ__, _dq, ), \
  ZERO_IF(__AVX512VL__, _vl, ), ZERO_IF(__AVX512VNNI__, _vnni, ), \
  ZERO_IF(__AVX512BF16__, _bf16, ), ZERO_IF(__AVX512FP16__, _fp16, ), \
  ZERO_JOIN(ZERO_IF(__AVX512IFMA__, _ifma, ), ZERO_IF(__AVX512VBMI__, _vbmi, ), \
    ZERO_IF(__AVX512VBMI2__, _vbmi2, ), ZERO_IF(__AVX512BITALG__, _bitalg, ), \
    ZERO_IF(__AVX512VPOPCNTDQ__, _vpopcntdq, ), ZERO_IF(__AVX10_1__, _avx10_1, ), \
    ZERO_IF(__AVX10_2__, _avx10_2, ), ZERO_IF(__AVXVNNI__, _avxvnni, )))
#define ZERO_FLAGS_X86 ZERO_JOIN( \
  ZERO_IF(__FMA__, _fma, ), ZERO_IF(__F16C__, _f16c, ), ZERO_IF(__BMI__, _bmi, ), \
  ZERO_IF(__BMI2__, _bmi2, ), ZERO_IF(__LZCNT__, _lzcnt, ), ZERO_IF(__POPCNT__, _popcnt, ), \
  ZERO_IF(__MOVBE__, _movbe, ), \
  ZERO_JOIN(ZERO_IF(__FMA4__, _fma4, ), ZERO_IF(__XOP__, _xop, ), ZERO_IF(__TBM__, _tbm, ), \
    ZERO_IF(__GFNI__, _gfni, ), ZERO_IF(__ADX__, _adx, ), ZERO_IF(__CRC32__, _crc32, ), \
    ZERO_IF(__PCLMUL__, _pclmul, ), \
    ZERO_JOIN(ZERO_IF(__AVXIFMA__, _avxifma, ), ZERO_IF(__AVXVNNIINT8__, _avxvnniint8, ), \
      ZERO_IF(__AVXVNNIINT16__, _avxvnniint16, ), ZERO_IF(__AVXNECONVERT__, _avxneconvert, ), \
      ZERO_IF(__CMPCCXADD__, _cmpccxadd, ), ZERO_IF(__RAOINT__, _raoint, ), \
      ZERO_IF(__SSE4A__, _sse4a, ), ZERO_IF(__APX_F__, _apxf, ZERO_FLAGS_APX))))
// Where a unit has some of it only.
#define ZERO_FLAGS_APX ZERO_JOIN( \
  ZERO_IF(__EGPR__, _egpr, ), ZERO_IF(__PUSH2POP2__, _push2pop2, ), ZERO_IF(__PPX__, _ppx, ), \
  ZERO_IF(__NDD__, _ndd, ), ZERO_IF(__CCMP__, _ccmp, ), ZERO_IF(__NF__, _nf, ), \
  ZERO_IF(__CF__, _cf, ), ZERO_IF(__ZU__, _zu, ))
#define ZERO_FLAGS_ARM ZERO_JOIN(ZERO_FLAGS_ARM_VECTORS, ZERO_FLAGS_ARM_MORE, \
  ZERO_LEVEL(__ARM_FEATURE_RCPC, _rcpc), ZERO_IF(__ARM_FEATURE_CSSC, _cssc, ), \
  ZERO_IF(__ARM_FEATURE_LSE128, _lse128, ), ZERO_IF(__ARM_FEATURE_CRC32, _crc32, ), \
  ZERO_IF(__ARM_FEATURE_AES, _aes, ), ZERO_IF(__ARM_FEATURE_SHA3, _sha3, ))
#define ZERO_FLAGS_ARM_MORE ZERO_JOIN( \
  ZERO_IF(__ARM_FEATURE_SVE2p2, _sve2p2, ZERO_IF(__ARM_FEATURE_SVE2p1, _sve2p1, )), \
  ZERO_IF(__ARM_FEATURE_FRINT, _frint, ), \
  ZERO_IF(__ARM_FEATURE_COMPLEX, _complex, ), ZERO_IF(__ARM_FEATURE_QRDMX, _qrdmx, ), \
  ZERO_IF(__ARM_FEATURE_FAMINMAX, _faminmax, ), ZERO_IF(__ARM_FEATURE_CMPBR, _cmpbr, ), \
  ZERO_IF(__ARM_FEATURE_LSFE, _lsfe, ), ZERO_IF(__ARM_FEATURE_FPRCVT, _fprcvt, ))
#define ZERO_FLAGS_ARM_VECTORS ZERO_JOIN( \
  ZERO_IF(__ARM_FEATURE_SVE2, _sve2, ZERO_IF(__ARM_FEATURE_SVE, _sve, )), \
  ZERO_IF(__ARM_FEATURE_DOTPROD, _dotprod, ), ZERO_IF(__ARM_FEATURE_ATOMICS, _lse, ), \
  ZERO_IF(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC, _fp16, ), \
  ZERO_IF(__ARM_FEATURE_FP16_FML, _fp16fml, ), \
  ZERO_IF(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC, _bf16, ), \
  ZERO_IF(__ARM_FEATURE_MATMUL_INT8, _i8mm, ), ZERO_IF(__ARM_FEATURE_MOPS, _mops, ))
#define ZERO_FLAGS_MATH ZERO_JOIN( \
  ZERO_IF(__FAST_MATH__, _fast_math, ), ZERO_IF(__FINITE_MATH_ONLY__, _finite, ), \
  ZERO_IF(__ASSOCIATIVE_MATH__, _associative, ), ZERO_IF(__RECIPROCAL_MATH__, _reciprocal, ), \
  ZERO_IF(__NO_SIGNED_ZEROS__, _no_signed_zeros, ), ZERO_IF(__NO_TRAPPING_MATH__, _no_traps, ), \
  ZERO_IF(__NO_MATH_ERRNO__, _no_errno, ), ZERO_IF(__ROUNDING_MATH__, _rounding, ))
#define ZERO_FLAGS_LANGUAGE ZERO_JOIN( \
  ZERO_IF(__EXCEPTIONS, , _no_exceptions), ZERO_IF(__GXX_RTTI, , _no_rtti), \
  ZERO_IF(__SUPPORT_SNAN__, _signaling_nans, ), \
  ZERO_IF(__SSE2_MATH__, , ZERO_IF(__x86_64__, _x87, )), , , , )

/// The inline namespace of what is thrown and of plain data, which units with different flags hand
/// to each other. What changes the layout of the standard library's types is in the name.
#define ZERO_SHARED_NAMESPACE ZERO_JOIN(v0_3, ZERO_IF(_GLIBCXX_USE_CXX11_ABI, , _other_std), \
  ZERO_IF(_GLIBCXX_DEBUG, _debug_containers, ), , , , , )

/// The inline namespace of everything whose code or meaning depends on a unit's flags.
#define ZERO_NAMESPACE ZERO_JOIN(ZERO_SHARED_NAMESPACE, ZERO_FLAGS_VECTORS, ZERO_FLAGS_AVX512, \
  ZERO_IF(__AVX512BMM__, _bmm, ), ZERO_FLAGS_X86, ZERO_FLAGS_ARM, ZERO_FLAGS_MATH, \
  ZERO_FLAGS_LANGUAGE)

// clang-format on
