/// @file
/// The number a rule runs on where it runs on a device.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"

#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::device {

/// One float, or double, whose operations are rounded as they are written.
///
/// nvcc contracts `a * b + c` unless told otherwise, and with -use_fast_math divides and takes
/// roots approximately; the intrinsics behind these operators do neither, whatever the flags. So a
/// rule's element has the bits that the host gives it where the host has a fused multiply-add, and
/// those of math::mul_add's two roundings elsewhere differ in the last place. What flags still
/// decide is -ftz=true, a part of -use_fast_math, which flushes subnormal numbers to zero. Which
/// NaN an operation makes is the device's own.
///
/// On the host it computes the same bits, in software where the target has no fused multiply-add:
/// that is what tests of device arithmetic run on.
/// @tparam T  float or double
template <class T>
class Real {
 public:
  using Scalar = T;  ///< the plain number that mixes with it

  Real() = default;
  /// Exact; implicit, so that a number mixes with a Real on either side.
  ZERO_HOST_DEVICE constexpr Real(T value) noexcept : value_(value) {}
  /// Exact.
  [[nodiscard]] ZERO_HOST_DEVICE constexpr explicit operator T() const noexcept { return value_; }

  /// Rounded to nearest even, never contracted.
  [[nodiscard]] ZERO_HOST_DEVICE friend Real operator+(Real a, Real b) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (wide)
      return __dadd_rn(a.value_, b.value_);
    else
      return __fadd_rn(a.value_, b.value_);
#else
    return a.value_ + b.value_;
#endif
  }
  /// @copydoc operator+
  [[nodiscard]] ZERO_HOST_DEVICE friend Real operator-(Real a, Real b) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (wide)
      return __dsub_rn(a.value_, b.value_);
    else
      return __fsub_rn(a.value_, b.value_);
#else
    return a.value_ - b.value_;
#endif
  }
  /// @copydoc operator+
  [[nodiscard]] ZERO_HOST_DEVICE friend Real operator*(Real a, Real b) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (wide)
      return __dmul_rn(a.value_, b.value_);
    else
      return __fmul_rn(a.value_, b.value_);
#else
    // Opaque, since gcc contracts across statements where the target has a fused multiply-add.
    T product = a.value_ * b.value_;
    asm("" : "+m"(product));
    return product;
#endif
  }
  /// Rounded correctly, whatever -prec-div says.
  [[nodiscard]] ZERO_HOST_DEVICE friend Real operator/(Real a, Real b) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (wide)
      return __ddiv_rn(a.value_, b.value_);
    else
      return __fdiv_rn(a.value_, b.value_);
#else
    return a.value_ / b.value_;
#endif
  }
  /// Exact.
  [[nodiscard]] ZERO_HOST_DEVICE friend Real operator-(Real a) noexcept { return -a.value_; }
  /// As the operator of one more letter.
  ZERO_HOST_DEVICE Real& operator+=(Real b) noexcept { return *this = *this + b; }
  /// @copydoc operator+=
  ZERO_HOST_DEVICE Real& operator-=(Real b) noexcept { return *this = *this - b; }
  /// @copydoc operator+=
  ZERO_HOST_DEVICE Real& operator*=(Real b) noexcept { return *this = *this * b; }
  /// @copydoc operator+=
  ZERO_HOST_DEVICE Real& operator/=(Real b) noexcept { return *this = *this / b; }

  /// False if either is a NaN.
  [[nodiscard]] ZERO_HOST_DEVICE friend bool operator<(Real a, Real b) noexcept {
    return a.value_ < b.value_;
  }
  /// @copydoc operator<
  [[nodiscard]] ZERO_HOST_DEVICE friend bool operator>(Real a, Real b) noexcept {
    return a.value_ > b.value_;
  }

  /// |a|, exact.
  [[nodiscard]] ZERO_HOST_DEVICE static Real abs(Real a) noexcept { return math::abs(a.value_); }
  /// Rounded correctly, whatever -prec-sqrt says.
  [[nodiscard]] ZERO_HOST_DEVICE static Real sqrt(Real a) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (wide)
      return __dsqrt_rn(a.value_);
    else
      return __fsqrt_rn(a.value_);
#else
    return math::sqrt(a.value_);
#endif
  }
  /// a * b + c, rounded once.
  [[nodiscard]] ZERO_HOST_DEVICE static Real mul_add(Real a, Real b, Real c) noexcept {
#if defined(__CUDA_ARCH__)
    if constexpr (wide)
      return __fma_rn(a.value_, b.value_, c.value_);
    else
      return __fmaf_rn(a.value_, b.value_, c.value_);
#else
    if constexpr (wide)
      return __builtin_fma(a.value_, b.value_, c.value_);
    else
      return __builtin_fmaf(a.value_, b.value_, c.value_);
#endif
  }

 private:
  static constexpr bool wide = std::is_same_v<T, double>;

  T value_ = 0;
};

}  // namespace zero::inline ZERO_NAMESPACE::device
