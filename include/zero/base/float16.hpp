/// @file
/// bf16 and fp16 as 16-bit storage types: conversions only, arithmetic happens in fp32.
#pragma once

#include "zero/base/config.hpp"

#include <bit>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE {

namespace detail {

/// fp32 to bf16, round to nearest even; a NaN stays a (quiet) NaN.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint16_t bf16_bits(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

[[nodiscard]] ZERO_HOST_DEVICE constexpr float float_of_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// fp32 to IEEE binary16, round to nearest even, with subnormals; overflow becomes infinity.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::uint16_t fp16_bits(float value) noexcept {
  auto const bits = std::bit_cast<std::uint32_t>(value);
  auto const sign = (bits >> 16) & 0x8000u;
  std::uint32_t const magnitude = bits & 0x7fffffffu;
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    // One instruction, but that its NaN has other bits. A selection, not a branch.
    std::uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return magnitude > 0x7f800000u ? static_cast<std::uint16_t>(sign | 0x7e00u) : half;
  }
#endif
  if (magnitude > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the last subnormal bit of fp16 at the last bit of the fp32 mantissa, so the
    // fp32 addition itself does the rounding to nearest even.
    float const shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
  }
  std::uint32_t const rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

[[nodiscard]] ZERO_HOST_DEVICE constexpr float float_of_fp16(std::uint16_t half) noexcept {
  std::uint32_t const sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  std::uint32_t const magnitude = half & 0x7fffu;
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    std::uint32_t const nan = sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
    return magnitude > 0x7c00u ? std::bit_cast<float>(nan) : value;
  }
#endif
  if (magnitude >= 0x7c00u) {
    return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  }
  if (magnitude >= 0x400u) return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  float const subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE

namespace zero::inline ZERO_SHARED_NAMESPACE {

/// bfloat16: fp32's range with 8 bits of precision. Narrowing rounds to nearest even.
struct bf16 {
  std::uint16_t bits = 0;  ///< sign, 8 bits of exponent, 7 of mantissa

  bf16() = default;
  /// Rounds to nearest even.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr explicit bf16(float value) noexcept
      : bits(detail::bf16_bits(value)) {}
  /// Exact.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr explicit operator float()
      const noexcept {
    return detail::float_of_bf16(bits);
  }
  /// The number with that representation.
  [[nodiscard]] ZERO_ALWAYS_INLINE static constexpr bf16 from_bits(std::uint16_t raw) noexcept {
    bf16 result;
    result.bits = raw;
    return result;
  }
  /// Adds in float and rounds the sum, as `gradient[i] += x` of any precision does.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr bf16& operator+=(float x) noexcept {
    return *this = bf16(static_cast<float>(*this) + x);
  }
  /// Compares representations, so that "bit-identical" can be written as `==`.
  friend constexpr bool operator==(bf16, bf16) = default;
};

/// IEEE binary16: 11 bits of precision, largest finite value 65504. Narrowing rounds to nearest
/// even and overflows to infinity, which is what a dynamic loss scale watches for.
struct fp16 {
  std::uint16_t bits = 0;  ///< sign, 5 bits of exponent, 10 of mantissa

  fp16() = default;
  /// Rounds to nearest even; too large becomes infinity.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr explicit fp16(float value) noexcept
      : bits(detail::fp16_bits(value)) {}
  /// Exact.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr explicit operator float()
      const noexcept {
    return detail::float_of_fp16(bits);
  }
  /// The number with that representation.
  [[nodiscard]] ZERO_ALWAYS_INLINE static constexpr fp16 from_bits(std::uint16_t raw) noexcept {
    fp16 result;
    result.bits = raw;
    return result;
  }
  /// Adds in float and rounds the sum, as `gradient[i] += x` of any precision does.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE constexpr fp16& operator+=(float x) noexcept {
    return *this = fp16(static_cast<float>(*this) + x);
  }
  /// Compares representations, so that "bit-identical" can be written as `==`.
  friend constexpr bool operator==(fp16, fp16) = default;
};

}  // namespace zero::inline ZERO_SHARED_NAMESPACE
