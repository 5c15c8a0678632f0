/// @file
/// Conversions and additions between element types, array by array.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/pack.hpp"
#include "zero/kernel/rounding.hpp"

#include <cstddef>
#include <cstring>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// out[i] = To(in[i]) for i in [0, count). Rounds once, to nearest even, with the bits of
/// base/float16.hpp wherever an element stands. The arrays do not overlap; no alignment is needed.
template <FloatElement To, FloatElement From, Isa I = native>
void convert(To* out, From const* in, std::size_t count) noexcept {
  using V = PackOf<I, RealOf<To, From>>;
  std::size_t const vectors = count - count % V::lanes;
  std::size_t i = 0;
  for (; i < vectors; i += V::lanes) V::load(in + i).store(out + i);
  for (; i < count; ++i) out[i] = detail::convert<To>(in[i]);
}

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

/// `convert` for floating-point types that are known at run time, in memory of the host that needs
/// no alignment.
ZERO_APART void convert_on_host(
    DType to, void* out, DType from, void const* in, std::size_t count) noexcept;

#if ZERO_BODIES

ZERO_BODY void convert_on_host(
    DType to, void* out, DType from, void const* in, std::size_t count) noexcept {
  detail::with_real(to, [&]<class To>(To) {
    detail::with_real(from, [&]<class From>(From) {
      detail::convert_unaligned<To, From>(
          static_cast<std::byte*>(out), static_cast<std::byte const*>(in), count);
    });
  });
}

#endif

/// out[i] = Acc(out[i] + in[i]) for i in [0, count), added in float, or in double if one of them is
/// that: one rounding, wherever an element stands. The arrays do not overlap; no alignment is
/// needed.
template <FloatElement Acc, FloatElement T, Isa I = native>
void add(Acc* out, T const* in, std::size_t count) noexcept {
  using Real = RealOf<Acc, T>;
  using V = PackOf<I, Real>;
  std::size_t const vectors = count - count % V::lanes;
  std::size_t i = 0;
  for (; i < vectors; i += V::lanes) (V::load(out + i) + V::load(in + i)).store(out + i);
  for (; i < count; ++i) {
    out[i] = detail::convert<Acc>(detail::convert<Real>(out[i]) + detail::convert<Real>(in[i]));
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
