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

/// 1 where `macro` is defined as 1 and `other` is not.
#define ZERO_UNLESS(other, macro) ZERO_IF(other, 0, ZERO_IF(macro, 1, 0))

/// 1 where `macro` is `level`, which is 1, 2 or 3, and 0 elsewhere.
#define ZERO_LEVEL(macro, level) ZERO_LEVEL_VALUE(macro, level)
#define ZERO_LEVEL_VALUE(value, level) ZERO_IF(ZERO_LEVEL_##value##_##level, 1, 0)
#define ZERO_LEVEL_1_1 1
#define ZERO_LEVEL_2_2 1
#define ZERO_LEVEL_3_3 1

/// One name of eight parts, any of which may be empty.
#define ZERO_JOIN(a, b, c, d, e, f, g, h) ZERO_JOIN_PARTS(a, b, c, d, e, f, g, h)
#define ZERO_JOIN_PARTS(a, b, c, d, e, f, g, h) a##b##c##d##e##f##g##h

/// What a name is as text.
#define ZERO_TEXT(name) ZERO_TEXT_OF(name)
#define ZERO_TEXT_OF(name) #name

// clang-format off

// Four flags, each a macro that is 1 and a name: as a hexadecimal digit, as part of a name, as text.
#define ZERO_FLAGS_DIGIT(a, a_name, b, b_name, c, c_name, d, d_name) ZERO_DIGIT( \
  ZERO_IF_VALUE(a, 1, 0), ZERO_IF_VALUE(b, 1, 0), ZERO_IF_VALUE(c, 1, 0), ZERO_IF_VALUE(d, 1, 0))
#define ZERO_DIGIT(a, b, c, d) ZERO_DIGIT_OF(a, b, c, d)
#define ZERO_DIGIT_OF(a, b, c, d) ZERO_DIGIT_##a##b##c##d
#define ZERO_FLAGS_NAME(a, a_name, b, b_name, c, c_name, d, d_name) ZERO_JOIN( \
  ZERO_IF(a, _##a_name, ), ZERO_IF(b, _##b_name, ), ZERO_IF(c, _##c_name, ), \
  ZERO_IF(d, _##d_name, ), , , , )
#define ZERO_FLAGS_TEXT(a, a_name, b, b_name, c, c_name, d, d_name) \
  ZERO_IF(a, " " #a_name, ) ZERO_IF(b, " " #b_name, ) ZERO_IF(c, " " #c_name, ) \
  ZERO_IF(d, " " #d_name, )
#define ZERO_FLAGS_ROW(a, b, c, d, e, f, g, h) a b c d e f g h
#define ZERO_DIGIT_0000 0
#define ZERO_DIGIT_0001 1
#define ZERO_DIGIT_0010 2
#define ZERO_DIGIT_0011 3
#define ZERO_DIGIT_0100 4
#define ZERO_DIGIT_0101 5
#define ZERO_DIGIT_0110 6
#define ZERO_DIGIT_0111 7
#define ZERO_DIGIT_1000 8
#define ZERO_DIGIT_1001 9
#define ZERO_DIGIT_1010 a
#define ZERO_DIGIT_1011 b
#define ZERO_DIGIT_1100 c
#define ZERO_DIGIT_1101 d
#define ZERO_DIGIT_1110 e
#define ZERO_DIGIT_1111 f

// All flags, most significant first: `four` of each four, which `join` puts together. Of a chain,
// each of which includes those before, only the last one is there.
#if defined(__arm__) || defined(__aarch64__)
#define ZERO_FLAGS_PROCESSOR(join, four) join( \
  four(ZERO_UNLESS(__ARM_FEATURE_SVE2, __ARM_FEATURE_SVE), sve, __ARM_FEATURE_SVE2, sve2, \
       ZERO_UNLESS(__ARM_FEATURE_SVE2p2, __ARM_FEATURE_SVE2p1), sve2p1, \
       __ARM_FEATURE_SVE2p2, sve2p2), \
  four(__ARM_FEATURE_DOTPROD, dotprod, __ARM_FEATURE_ATOMICS, lse, \
       __ARM_FEATURE_FP16_VECTOR_ARITHMETIC, fp16, __ARM_FEATURE_FP16_FML, fp16fml), \
  four(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC, bf16, __ARM_FEATURE_MATMUL_INT8, i8mm, \
       __ARM_FEATURE_MOPS, mops, __ARM_FEATURE_FRINT, frint), \
  four(__ARM_FEATURE_COMPLEX, complex, __ARM_FEATURE_QRDMX, qrdmx, \
       __ARM_FEATURE_FAMINMAX, faminmax, __ARM_FEATURE_CMPBR, cmpbr), \
  four(__ARM_FEATURE_LSFE, lsfe, __ARM_FEATURE_FPRCVT, fprcvt, \
       ZERO_LEVEL(__ARM_FEATURE_RCPC, 1), rcpc, ZERO_LEVEL(__ARM_FEATURE_RCPC, 2), rcpc2), \
  four(ZERO_LEVEL(__ARM_FEATURE_RCPC, 3), rcpc3, __ARM_FEATURE_CSSC, cssc, \
       __ARM_FEATURE_LSE128, lse128, __ARM_FEATURE_CRC32, crc32), \
  four(__ARM_FEATURE_AES, aes, __ARM_FEATURE_SHA3, sha3, , , , ), )
#define ZERO_CODE_0000000000 1
#else
#define ZERO_FLAGS_PROCESSOR(join, four) join( \
  four(ZERO_UNLESS(__SSSE3__, __SSE3__), sse3, ZERO_UNLESS(__SSE4_1__, __SSSE3__), ssse3, \
       ZERO_UNLESS(__SSE4_2__, __SSE4_1__), sse4_1, ZERO_UNLESS(__AVX__, __SSE4_2__), sse4_2), \
  four(ZERO_UNLESS(__AVX2__, __AVX__), avx, ZERO_UNLESS(__AVX512F__, __AVX2__), avx2, \
       __AVX512F__, avx512f, __AVX512BW__, avx512bw), \
  four(__AVX512CD__, avx512cd, __AVX512DQ__, avx512dq, __AVX512VL__, avx512vl, \
       __AVX512VNNI__, avx512vnni), \
  four(__AVX512BF16__, avx512bf16, __AVX512FP16__, avx512fp16, __AVX512IFMA__, avx512ifma, \
       __AVX512VBMI__, avx512vbmi), \
  four(__AVX512VBMI2__, avx512vbmi2, __AVX512BITALG__, avx512bitalg, \
       __AVX512VPOPCNTDQ__, avx512vpopcntdq, __AVX512BMM__, avx512bmm), \
  four(__AVX10_1__, avx10_1, __AVX10_2__, avx10_2, __AVXVNNI__, avxvnni, __FMA__, fma), \
  four(__F16C__, f16c, __BMI__, bmi, __BMI2__, bmi2, __LZCNT__, lzcnt), \
  join( \
    four(__POPCNT__, popcnt, __MOVBE__, movbe, __FMA4__, fma4, __XOP__, xop), \
    four(__TBM__, tbm, __GFNI__, gfni, __ADX__, adx, __CRC32__, crc32), \
    four(__PCLMUL__, pclmul, __AVXIFMA__, avxifma, __AVXVNNIINT8__, avxvnniint8, \
         __AVXVNNIINT16__, avxvnniint16), \
    four(__AVXNECONVERT__, avxneconvert, __CMPCCXADD__, cmpccxadd, __RAOINT__, raoint, \
         __SSE4A__, sse4a), \
    four(__APX_F__, apxf, ZERO_UNLESS(__APX_F__, __EGPR__), apx_egpr, \
         ZERO_UNLESS(__APX_F__, __PUSH2POP2__), apx_push2pop2, \
         ZERO_UNLESS(__APX_F__, __PPX__), apx_ppx), \
    four(ZERO_UNLESS(__APX_F__, __NDD__), apx_ndd, ZERO_UNLESS(__APX_F__, __CCMP__), apx_ccmp, \
         ZERO_UNLESS(__APX_F__, __NF__), apx_nf, ZERO_UNLESS(__APX_F__, __CF__), apx_cf), \
    four(ZERO_UNLESS(__APX_F__, __ZU__), apx_zu, \
         ZERO_IF(__x86_64__, ZERO_UNLESS(__SSE2_MATH__, 1), 0), x87, , , , ), ))
#define ZERO_CODE_00000000000000000 1
#endif
#define ZERO_FLAGS(join, four) join( \
  ZERO_FLAGS_PROCESSOR(join, four), \
  four(__FAST_MATH__, fast_math, __FINITE_MATH_ONLY__, finite, \
       __ASSOCIATIVE_MATH__, associative, __RECIPROCAL_MATH__, reciprocal), \
  four(__NO_SIGNED_ZEROS__, no_signed_zeros, __NO_TRAPPING_MATH__, no_traps, \
       __NO_MATH_ERRNO__, no_errno, __ROUNDING_MATH__, rounding), \
  four(ZERO_UNLESS(__EXCEPTIONS, 1), no_exceptions, ZERO_UNLESS(__GXX_RTTI, 1), no_rtti, \
       __SUPPORT_SNAN__, signaling_nans, , ), , , , )

/// The inline namespace of what is thrown and of plain data, which units with different flags hand
/// to each other. What changes the layout of the standard library's types is in the name.
#define ZERO_SHARED_NAMESPACE ZERO_JOIN(v0_3, ZERO_IF(_GLIBCXX_USE_CXX11_ABI, , _other_std), \
  ZERO_IF(_GLIBCXX_DEBUG, _debug_containers, ), , , , , )

/// The flags as text, with a blank before each.
#define ZERO_FLAGS_AS_TEXT "" ZERO_FLAGS(ZERO_FLAGS_ROW, ZERO_FLAGS_TEXT)

/// @def ZERO_NAMESPACE
/// The inline namespace of everything whose code or meaning depends on a unit's flags: the shared
/// one's name and, if there are any, a code of the flags, a digit for each four of `ZERO_FLAGS`.
/// zero::flags() lists them.
/// @def ZERO_IMPLEMENTATION_NAME
/// A name that has the flags as words.
#define ZERO_IS_PLAIN(code) ZERO_IF(ZERO_JOIN(ZERO_CODE_, code, , , , , , ), 1, 0)
#if ZERO_IS_PLAIN(ZERO_FLAGS(ZERO_JOIN, ZERO_FLAGS_DIGIT))
#define ZERO_NAMESPACE ZERO_SHARED_NAMESPACE
#define ZERO_IMPLEMENTATION_NAME implementation_with_default_flags
#else
#define ZERO_NAMESPACE ZERO_JOIN(ZERO_SHARED_NAMESPACE, _, \
  ZERO_FLAGS(ZERO_JOIN, ZERO_FLAGS_DIGIT), , , , , )
#define ZERO_IMPLEMENTATION_NAME ZERO_JOIN(implementation_with, \
  ZERO_FLAGS(ZERO_JOIN, ZERO_FLAGS_NAME), , , , , , )
#endif

// clang-format on
