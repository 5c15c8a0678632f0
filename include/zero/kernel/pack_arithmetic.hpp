/// @file
/// Arithmetic of packs that are vectors of the compiler's.
#pragma once

#include "zero/base/config.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// What packs of floats and of doubles do alike.
/// @tparam Pack  derives from this; is made of a vector, and gives it as `vector()`
template <class Pack>
class PackArithmetic {
 public:
  [[nodiscard]] ZERO_ALWAYS_INLINE friend Pack operator+(Pack a, Pack b) noexcept {
    return Pack(a.vector() + b.vector());
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE friend Pack operator-(Pack a, Pack b) noexcept {
    return Pack(a.vector() - b.vector());
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE friend Pack operator*(Pack a, Pack b) noexcept {
    return Pack(a.vector() * b.vector());
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE friend Pack operator/(Pack a, Pack b) noexcept {
    return Pack(a.vector() / b.vector());
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE friend Pack operator-(Pack a) noexcept {
    return Pack(-a.vector());
  }
  ZERO_ALWAYS_INLINE friend Pack& operator+=(Pack& a, Pack b) noexcept { return a = a + b; }
  ZERO_ALWAYS_INLINE friend Pack& operator-=(Pack& a, Pack b) noexcept { return a = a - b; }
  ZERO_ALWAYS_INLINE friend Pack& operator*=(Pack& a, Pack b) noexcept { return a = a * b; }
  ZERO_ALWAYS_INLINE friend Pack& operator/=(Pack& a, Pack b) noexcept { return a = a / b; }

  [[nodiscard]] ZERO_ALWAYS_INLINE friend auto operator<(Pack a, Pack b) noexcept {
    using Mask = typename Pack::Mask;
    return Mask{reinterpret_cast<decltype(Mask::bits)>(a.vector() < b.vector())};
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE friend auto operator>(Pack a, Pack b) noexcept { return b < a; }

  /// The same value, of which the compiler no longer knows that it is a product: it cannot fuse it
  /// into an addition that follows.
  [[nodiscard]] ZERO_ALWAYS_INLINE static Pack opaque(Pack a) noexcept {
    auto all = a.vector();
#if defined(__SSE2__)
    asm("" : "+x"(all));
#elif defined(__aarch64__)
    asm("" : "+w"(all));
#endif
    return Pack(all);
  }

  /// The number in a lane.
  [[nodiscard]] ZERO_ALWAYS_INLINE auto operator[](std::size_t lane) const noexcept {
    return static_cast<Pack const*>(this)->vector()[lane];
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::kernel
