/// @file
/// Conversions between element types that are known at run time, in memory of the host.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/kernel/element_hash.hpp"
#include "zero/kernel/rounding.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

template <class To, class From>
void convert_unaligned(std::byte* out, std::byte const* in, std::size_t count) noexcept {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, in + i * sizeof(From), sizeof(From));
    To const rounded = convert<To>(value);
    std::memcpy(out + i * sizeof(To), &rounded, sizeof(To));
  }
}

/// Calls `f` with a value of the floating-point type that a dtype stands for.
template <class F>
void with_real(DType type, F&& f) {
  switch (type) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::bf16: return f(bf16{});
    case DType::f16: return f(fp16{});
    default: return;
  }
}

}  // namespace detail

/// out[i] = To(in[i]) for i in [0, count), as `kernel::convert`: rounds once, to nearest even.
/// Needs no alignment. The arrays do not overlap.
ZERO_APART void convert_on_host(
    DType to, void* out, DType from, void const* in, std::size_t count) noexcept;

/// Which of `count` elements is the first that is finite, and would be infinite if it were rounded
/// to the type `to`; `count` if none is. Needs no alignment. Under `Overflow::saturate` these
/// become the largest numbers that are not, so that none is. `least` is the least number that
/// becomes infinite; 0 where what is rounded to nearest does.
/// @par Cost  one pass, where the type of the elements holds larger numbers; else nothing
ZERO_APART [[nodiscard]] std::size_t first_overflow(
    DType to, DType from, void* values, std::size_t count, Overflow how, float least = 0) noexcept;

#if ZERO_BODIES

ZERO_BODY std::size_t first_overflow(
    DType to, DType from, void* values, std::size_t count, Overflow how, float least) noexcept {
  double const most = largest(to);
  // What rounds to infinity begins halfway to the power of two that would come next.
  double const halfway = (most + (to == DType::f16 ? 0x1p16 : 0x1p128)) / 2;
  double const bound = least > 0 ? double{least} : halfway;
  if (largest(from) <= most) return count;
  // bf16 has no number between this one and 65536.
  double const top = from == DType::bf16 ? 65280. : most;
  std::size_t i = 0;
  detail::with_real(from, [&](auto number) {
    using T = decltype(number);
    using Bits = detail::BitsOf<T>;
    // By bits, because -ffast-math lets compilers take every number for a finite one.
    auto const bits_of = [](double x) { return __builtin_bit_cast(Bits, detail::convert<T>(x)); };
    constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1));
    Bits const lowest = bits_of(bound);
    Bits const rest = Bits(bits_of(largest(from)) - lowest);
    auto* const first = static_cast<std::byte*>(values);
    Bits bits{};
    auto const overflows = [&](std::size_t k) {
      std::memcpy(&bits, first + k * sizeof(T), sizeof(T));
      return Bits(Bits(bits & ~sign) - lowest) <= rest;
    };
    constexpr std::size_t block = 256;
    for (; i < count; ++i) {
      // Most blocks have none, which takes one look at many elements.
      if (i % block == 0 && count - i >= block) {
        unsigned any = 0;
        for (std::size_t k = 0; k < block; ++k) any |= overflows(i + k) ? 1u : 0u;
        if (any == 0) i += block - 1;
        if (any == 0) continue;
      }
      if (!overflows(i)) continue;
      if (how == Overflow::refuse) return;
      bits = bits_of((bits & sign) != 0 ? -top : top);
      std::memcpy(first + i * sizeof(T), &bits, sizeof(T));
    }
  });
  return i;
}

ZERO_BODY void convert_on_host(
    DType to, void* out, DType from, void const* in, std::size_t count) noexcept {
  // nvcc takes no lambda with a list of template parameters in a template.
  detail::with_real(to, [&](auto wanted) {
    detail::with_real(from, [&](auto held) {
      detail::convert_unaligned<decltype(wanted), decltype(held)>(
          static_cast<std::byte*>(out), static_cast<std::byte const*>(in), count);
    });
  });
}

#endif

}  // namespace zero::inline ZERO_NAMESPACE::kernel
