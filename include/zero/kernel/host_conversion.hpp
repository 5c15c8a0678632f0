/// @file
/// Conversions between element types that are known at run time, in memory of the host.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/rounding.hpp"

#include <cstddef>
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

#if ZERO_BODIES

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
