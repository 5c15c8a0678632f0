/// @file
/// The functions a rule may use, on whatever number it is instantiated with.
#pragma once

#include "zero/base/config.hpp"

#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::math {

/// The number type of an expression over `V` and plain numbers: `V`, or theirs if all are plain.
template <class... T>
using Common = std::common_type_t<T...>;

namespace detail {
template <class V>
struct ScalarOf {
  using Type = float;
};
template <>
struct ScalarOf<double> {
  using Type = double;
};
template <class V>
  requires requires { typename V::Scalar; }
struct ScalarOf<V> {
  using Type = typename V::Scalar;
};
}  // namespace detail

/// The plain number that mixes with `V`: double for double and for packs of doubles, else float.
template <class V>
using Scalar = typename detail::ScalarOf<V>::Type;

/// a * b + c, for one `V` and plain numbers of its `Scalar` in any order.
///
/// A fused multiply-add where the target has one, two roundings where it has not, decided once per
/// target and never by the optimiser. Rules spell every multiply-add this way: a compiler may fuse
/// a bare `a * b + c` in one copy of a function and not in the next, and the bits of a parameter
/// would depend on which copy came upon it.
template <class A, class B, class C>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE Common<A, B, C> mul_add(A const& a,
                                                                          B const& b,
                                                                          C const& c) noexcept {
  using V = Common<A, B, C>;
  constexpr bool mixed =
      (std::is_same_v<A, float> || std::is_same_v<B, float> || std::is_same_v<C, float>)&&(
          std::is_same_v<A, double> || std::is_same_v<B, double> || std::is_same_v<C, double>);
  static_assert(!mixed, "zero: a rule's arithmetic is in float, or in double, and not in both");
  if constexpr (std::is_floating_point_v<V>) {
#if defined(__CUDA_ARCH__) || defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    if constexpr (std::is_same_v<V, double>) {
      return __builtin_fma(a, b, c);
    } else {
      return __builtin_fmaf(a, b, c);
    }
#else
    // Two statements: within one, clang takes leave to round once where it knows the numbers.
    V const product = a * b;
    return product + c;
#endif
  } else {
    return V::mul_add(a, b, c);
  }
}

/// a + b in fp64, each rounded before: a product that comes in is never fused with the addition.
///
/// For `scalars` of rules, whose bits have to be the same wherever they are computed. Compilers for
/// devices fuse by default, gcc does where the target has a fused multiply-add.
[[nodiscard]] ZERO_HOST_DEVICE inline double sum(double a, double b) noexcept {
#if defined(__CUDA_ARCH__)
  return __dadd_rn(a, b);
#else
  // In memory a number has been rounded.
  asm("" : "+m"(a), "+m"(b));
  return a + b;
#endif
}

/// a * b in fp64, rounded: never fused with an addition that follows, as above.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE double product(double a, double b) noexcept {
#if defined(__CUDA_ARCH__)
  return __dmul_rn(a, b);
#else
  double result = a * b;
#if defined(__SSE2__)
  asm("" : "+x"(result));
#elif defined(__aarch64__)
  asm("" : "+w"(result));
#else
  asm("" : "+m"(result));
#endif
  return result;
#endif
}

/// Square root, rounded correctly.
template <class V>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE V sqrt(V const& x) noexcept {
  if constexpr (std::is_same_v<V, float>) {
    return __builtin_sqrtf(x);
  } else if constexpr (std::is_same_v<V, double>) {
    return __builtin_sqrt(x);
  } else {
    return V::sqrt(x);
  }
}

/// Absolute value.
template <class V>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE V abs(V const& x) noexcept {
  if constexpr (std::is_same_v<V, float>) {
    return __builtin_fabsf(x);
  } else if constexpr (std::is_same_v<V, double>) {
    return __builtin_fabs(x);
  } else {
    return V::abs(x);
  }
}

/// `yes` where `condition` holds, `no` elsewhere; both are evaluated. `condition` is the result of
/// `<` or `>` on two values of the same `V`.
template <class Condition, class A, class B>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE auto select(Condition const& condition,
                                                              A const& yes,
                                                              B const& no) noexcept {
  if constexpr (std::is_same_v<Condition, bool>) {
    return condition ? static_cast<Common<A, B>>(yes) : static_cast<Common<A, B>>(no);
  } else {
    return Condition::Value::select(condition, yes, no);
  }
}

/// The larger of two; the second if they do not compare.
template <class V>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE V(max)(V const& a, V const& b) noexcept {
  return select(a > b, a, b);
}

/// The smaller of two; the second if they do not compare.
template <class V>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE V(min)(V const& a, V const& b) noexcept {
  return select(a < b, a, b);
}

/// 1, -1, or `x` itself where it is a zero or a NaN.
template <class V>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE V sign(V const& x) noexcept {
  return select(x > V(0.f), V(1.f), select(x < V(0.f), V(-1.f), x));
}

}  // namespace zero::inline ZERO_NAMESPACE::math
