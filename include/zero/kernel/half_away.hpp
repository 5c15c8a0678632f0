/// @file
/// bf16 as an element that is rounded half away from zero.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/bf16_rounding.hpp"

#include <bit>
#include <cstdint>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

namespace kernel {

/// A bf16 for those who write it: kernels that have this for an output round to it half away from
/// zero, whichever they are. Who reads it reads a bf16.
struct HalfAwayBf16 {
  bf16 value;  ///< the same bits

  HalfAwayBf16() = default;
  /// Rounds half away from zero.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE explicit HalfAwayBf16(float number) noexcept {
    value.bits = static_cast<std::uint16_t>(rounded<OneLane>(OneLane::bits_of(number)));
  }
  /// Exact.
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE explicit operator float() const noexcept {
    return static_cast<float>(value);
  }
  /// Of the bits of several numbers: those of bf16, in the lower half. A pack stores them.
  template <class L>
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static typename L::Words rounded(
      typename L::Words bits) noexcept {
    return round_half_away<L>(bits);
  }
};

}  // namespace kernel

namespace detail {
template <>
struct DTypeOf<kernel::HalfAwayBf16> : std::integral_constant<DType, DType::bf16> {};
}  // namespace detail

}  // namespace zero::inline ZERO_NAMESPACE
