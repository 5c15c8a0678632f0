/// @file
/// Conversions and additions between element types, array by array.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/pack.hpp"
#include "zero/kernel/rounding.hpp"

#include <cstddef>

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
