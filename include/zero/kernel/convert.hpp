/// @file
/// Conversions and additions between element types, array by array.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/pack.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// out[i] = To(float(in[i])) for i in [0, count). Rounds to nearest even, with the bits of
/// base/float16.hpp wherever an element stands. The arrays do not overlap; no alignment is needed.
template <FloatElement To, FloatElement From, Isa I = native>
void convert(To* out, From const* in, std::size_t count) noexcept {
  using V = Pack<I>;
  std::size_t const vectors = count - count % V::lanes;
  std::size_t i = 0;
  for (; i < vectors; i += V::lanes) V::load(in + i).store(out + i);
  for (; i < count; ++i) out[i] = static_cast<To>(static_cast<float>(in[i]));
}

/// out[i] = Acc(float(out[i]) + float(in[i])) for i in [0, count): one rounding, wherever an
/// element stands. The arrays do not overlap; no alignment is needed.
template <FloatElement Acc, FloatElement T, Isa I = native>
void add(Acc* out, T const* in, std::size_t count) noexcept {
  using V = Pack<I>;
  std::size_t const vectors = count - count % V::lanes;
  std::size_t i = 0;
  for (; i < vectors; i += V::lanes) (V::load(out + i) + V::load(in + i)).store(out + i);
  for (; i < count; ++i) {
    out[i] = static_cast<Acc>(static_cast<float>(out[i]) + static_cast<float>(in[i]));
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
