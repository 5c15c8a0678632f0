/// @file
/// A pack without vectors, for compilers that have none.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/kernel/isa.hpp"
#include "zero/kernel/rounding.hpp"

#include <cstddef>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// What `Pack` is, as an array of numbers and loops over it: the same results, not as fast.
///
/// nvcc allows no vector in a function that it compiles for host and device, as the update of a
/// rule is.
/// @tparam Real  float or double
template <Isa I, class Real>
class PlainPack {
 public:
  static constexpr std::size_t lanes = (I & isa::lanes_mask) * sizeof(float) / sizeof(Real);
  using Scalar = Real;  ///< the plain number that mixes with it

  struct Mask {
    using Value = PlainPack;
    bool bits[lanes];
  };

  PlainPack() = default;
  ZERO_HOST_DEVICE PlainPack(Real value) noexcept {
    for (Real& lane : values_) lane = value;
  }

  template <class T>
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack load(T const* from) noexcept {
    PlainPack result;
    for (std::size_t i = 0; i < lanes; ++i) result.values_[i] = detail::convert<Real>(from[i]);
    return result;
  }
  template <class T>
  ZERO_HOST_DEVICE void store(T* to) const noexcept {
    for (std::size_t i = 0; i < lanes; ++i) to[i] = detail::convert<T>(values_[i]);
  }
  static constexpr std::size_t stream_alignment = 1;
  template <class T>
  ZERO_HOST_DEVICE static void stream(PlainPack low, PlainPack high, T* to) noexcept {
    low.store(to);
    high.store(to + lanes);
  }
  ZERO_HOST_DEVICE static void fence() noexcept {}

  [[nodiscard]] ZERO_HOST_DEVICE friend PlainPack operator+(PlainPack a, PlainPack b) noexcept {
    return map([](Real x, Real y) { return x + y; }, a, b);
  }
  [[nodiscard]] ZERO_HOST_DEVICE friend PlainPack operator-(PlainPack a, PlainPack b) noexcept {
    return map([](Real x, Real y) { return x - y; }, a, b);
  }
  [[nodiscard]] ZERO_HOST_DEVICE friend PlainPack operator*(PlainPack a, PlainPack b) noexcept {
    return map([](Real x, Real y) { return x * y; }, a, b);
  }
  [[nodiscard]] ZERO_HOST_DEVICE friend PlainPack operator/(PlainPack a, PlainPack b) noexcept {
    return map([](Real x, Real y) { return x / y; }, a, b);
  }
  [[nodiscard]] ZERO_HOST_DEVICE friend PlainPack operator-(PlainPack a) noexcept {
    return map([](Real x) { return -x; }, a);
  }
  ZERO_HOST_DEVICE PlainPack& operator+=(PlainPack b) noexcept { return *this = *this + b; }
  ZERO_HOST_DEVICE PlainPack& operator-=(PlainPack b) noexcept { return *this = *this - b; }
  ZERO_HOST_DEVICE PlainPack& operator*=(PlainPack b) noexcept { return *this = *this * b; }
  ZERO_HOST_DEVICE PlainPack& operator/=(PlainPack b) noexcept { return *this = *this / b; }

  [[nodiscard]] ZERO_HOST_DEVICE friend Mask operator<(PlainPack a, PlainPack b) noexcept {
    Mask mask;
    for (std::size_t i = 0; i < lanes; ++i) mask.bits[i] = a.values_[i] < b.values_[i];
    return mask;
  }
  [[nodiscard]] ZERO_HOST_DEVICE friend Mask operator>(PlainPack a, PlainPack b) noexcept {
    return b < a;
  }
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack select(Mask const& mask,
                                                         PlainPack yes,
                                                         PlainPack no) noexcept {
    for (std::size_t i = 0; i < lanes; ++i) {
      if (mask.bits[i]) no.values_[i] = yes.values_[i];
    }
    return no;
  }
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack abs(PlainPack a) noexcept {
    return map([](Real x) { return math::abs(x); }, a);
  }
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack sqrt(PlainPack a) noexcept {
    return map([](Real x) { return math::sqrt(x); }, a);
  }
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack mul_add(PlainPack a,
                                                          PlainPack b,
                                                          PlainPack c) noexcept {
    return map([](Real x, Real y, Real z) { return math::mul_add(x, y, z); }, a, b, c);
  }
  /// See Pack::opaque; through volatile memory.
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack opaque(PlainPack a) noexcept {
    for (Real& lane : a.values_) {
      Real volatile hidden = lane;
      lane = hidden;
    }
    return a;
  }

  struct Doubles {
    double values[lanes / 2];
    friend Doubles operator*(Doubles a, Doubles const& b) noexcept {
      for (std::size_t i = 0; i < lanes / 2; ++i) a.values[i] *= b.values[i];
      return a;
    }
    Doubles& operator+=(Doubles const& b) noexcept {
      for (std::size_t i = 0; i < lanes / 2; ++i) values[i] += b.values[i];
      return *this;
    }
  };
  [[nodiscard]] Doubles low_doubles() const noexcept { return doubles(0); }
  [[nodiscard]] Doubles high_doubles() const noexcept { return doubles(lanes / 2); }

  [[nodiscard]] ZERO_HOST_DEVICE Real operator[](std::size_t lane) const noexcept {
    return values_[lane];
  }

 private:
  template <class F, class... Packs>
  [[nodiscard]] ZERO_HOST_DEVICE static PlainPack map(F const& f, Packs const&... packs) noexcept {
    PlainPack result;
    for (std::size_t i = 0; i < lanes; ++i) result.values_[i] = f(packs.values_[i]...);
    return result;
  }

  [[nodiscard]] Doubles doubles(std::size_t first) const noexcept {
    Doubles result;
    for (std::size_t i = 0; i < lanes / 2; ++i) {
      result.values[i] = static_cast<double>(values_[first + i]);
    }
    return result;
  }

  Real values_[lanes];
};

}  // namespace zero::inline ZERO_NAMESPACE::kernel
