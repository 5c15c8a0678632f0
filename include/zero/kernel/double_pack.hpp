/// @file
/// A few doubles side by side, for rules that compute in double.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/pack_arithmetic.hpp"
#include "zero/kernel/rounding.hpp"

#include <cstddef>
#include <cstdint>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {
/// Vectors of doubles, and their masks, by lanes.
template <std::size_t Lanes>
struct WideVectors;
template <>
struct WideVectors<2> {
  using Doubles = double __attribute__((vector_size(16)));
  using Longs = std::int64_t __attribute__((vector_size(16)));
};
template <>
struct WideVectors<4> {
  using Doubles = double __attribute__((vector_size(32)));
  using Longs = std::int64_t __attribute__((vector_size(32)));
};
}  // namespace detail

/// Half as many doubles as a `VectorPack` has floats, with the same arithmetic. Loads widen, stores
/// round once; of other types than double they go element by element, since few precisions do that.
template <Isa I>
class DoublePack : public PackArithmetic<DoublePack<I>> {
 public:
  static constexpr std::size_t lanes = (I & isa::lanes_mask) / 2;
  using Scalar = double;  ///< the plain number that mixes with it

  using Doubles = typename detail::WideVectors<lanes>::Doubles;
  using Longs = typename detail::WideVectors<lanes>::Longs;

  /// The outcome of a comparison, lane by lane; feed it to `select`.
  struct Mask {
    using Value = DoublePack;
    Longs bits;
  };

  DoublePack() = default;
  /// All lanes equal. Implicit, so that numbers mix with packs; value − 0 keeps the sign of −0.
  ZERO_ALWAYS_INLINE DoublePack(double value) noexcept : doubles_(value - Doubles{}) {}
  ZERO_ALWAYS_INLINE explicit DoublePack(Doubles doubles) noexcept : doubles_(doubles) {}

  [[nodiscard]] ZERO_ALWAYS_INLINE Doubles vector() const noexcept { return doubles_; }

  [[nodiscard]] ZERO_ALWAYS_INLINE static DoublePack load(double const* from) noexcept {
    DoublePack result;
    __builtin_memcpy(&result.doubles_, from, sizeof(Doubles));
    return result;
  }
  template <class T>
  [[nodiscard]] ZERO_ALWAYS_INLINE static DoublePack load(T const* from) noexcept {
    DoublePack result;
    for (std::size_t i = 0; i < lanes; ++i) result.doubles_[i] = detail::convert<double>(from[i]);
    return result;
  }
  ZERO_ALWAYS_INLINE void store(double* to) const noexcept {
    __builtin_memcpy(to, &doubles_, sizeof(Doubles));
  }
  template <class T>
  ZERO_ALWAYS_INLINE void store(T* to) const noexcept {
    for (std::size_t i = 0; i < lanes; ++i) {
      double const lane = doubles_[i];
      to[i] = detail::convert<T>(lane);
    }
  }

  /// The functions below are what zero/base/math.hpp calls.
  [[nodiscard]] ZERO_ALWAYS_INLINE static DoublePack select(Mask mask,
                                                            DoublePack yes,
                                                            DoublePack no) noexcept {
    Longs const a = reinterpret_cast<Longs>(yes.doubles_);
    Longs const b = reinterpret_cast<Longs>(no.doubles_);
    return DoublePack(reinterpret_cast<Doubles>((mask.bits & a) | (~mask.bits & b)));
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static DoublePack abs(DoublePack a) noexcept {
    constexpr std::int64_t all_but_sign = ~std::uint64_t{0} >> 1;
    return DoublePack(
        reinterpret_cast<Doubles>(reinterpret_cast<Longs>(a.doubles_) & all_but_sign));
  }
  [[nodiscard]] ZERO_ALWAYS_INLINE static DoublePack sqrt(DoublePack a) noexcept {
#if defined(__AVX__)
    if constexpr ((I & isa::avx) != 0) {
      return DoublePack(
          reinterpret_cast<Doubles>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(a.doubles_))));
    }
#elif defined(__SSE2__)
    if constexpr ((I & isa::sse2) != 0) {
      return DoublePack(
          reinterpret_cast<Doubles>(_mm_sqrt_pd(reinterpret_cast<__m128d>(a.doubles_))));
    }
#endif
    for (std::size_t i = 0; i < lanes; ++i) a.doubles_[i] = __builtin_sqrt(a.doubles_[i]);
    return a;
  }
  /// a * b + c, rounded once where the Isa has a fused multiply-add and twice where it has not.
  [[nodiscard]] ZERO_ALWAYS_INLINE static DoublePack mul_add(DoublePack a,
                                                             DoublePack b,
                                                             DoublePack c) noexcept {
    if constexpr ((I & isa::fma) == 0) return a * b + c;
#if defined(__FMA__)
    if constexpr ((I & isa::avx) != 0) {
      return DoublePack(
          reinterpret_cast<Doubles>(_mm256_fmadd_pd(reinterpret_cast<__m256d>(a.doubles_),
                                                    reinterpret_cast<__m256d>(b.doubles_),
                                                    reinterpret_cast<__m256d>(c.doubles_))));
    }
#endif
    for (std::size_t i = 0; i < lanes; ++i) {
      a.doubles_[i] = __builtin_fma(a.doubles_[i], b.doubles_[i], c.doubles_[i]);
    }
    return a;
  }

 private:
  Doubles doubles_;
};

}  // namespace zero::inline ZERO_NAMESPACE::kernel
