/// @file
/// Sums over ranks: one pass over all ranks' buffers, added in rank order, rounded once.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/copy.hpp"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace zero::inline v0_1::kernel {

namespace detail {

/// Elements summed at a time: a constant trip count is what lets plain -O2 vectorise the loops.
inline constexpr std::size_t sum_width = 64;

/// The type sums are computed in; 16-bit types have no arithmetic of their own, and unsigned
/// integers wrap where signed ones would be undefined.
template <class Acc>
struct Arithmetic {
  using Type = float;
};
template <std::floating_point Acc>
struct Arithmetic<Acc> {
  using Type = Acc;
};
template <std::signed_integral Acc>
struct Arithmetic<Acc> {
  using Type = std::make_unsigned_t<Acc>;
};

/// fp64 to fp32, keeping an inexact result odd: rounding the result once more, to a type narrower
/// by at least two bits, then gives what rounding the fp64 value directly would have given.
[[nodiscard]] ZERO_ALWAYS_INLINE constexpr float round_to_odd(double value) noexcept {
  auto const nearest = static_cast<float>(value);
  auto const back = static_cast<double>(nearest);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  bool const inexact = back < value || back > value;
  bool const too_small = value < 0 ? back > value : back < value;
  if (inexact && bits % 2 == 0) bits = too_small ? bits + 1 : bits - 1;
  return std::bit_cast<float>(bits);
}

template <class To, class From>
[[nodiscard]] ZERO_ALWAYS_INLINE constexpr To convert(From value) noexcept {
  constexpr bool to_number = std::is_arithmetic_v<To>;
  if constexpr (std::same_as<To, From>) {
    return value;
  } else if constexpr (to_number && std::is_arithmetic_v<From>) {
    return static_cast<To>(value);
  } else if constexpr (to_number) {
    return static_cast<To>(static_cast<float>(value));
  } else if constexpr (std::same_as<From, double>) {
    return static_cast<To>(round_to_odd(value));
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

/// Rounds a sum to the accumulate type where that is narrower than the arithmetic.
template <class Acc, class Value>
[[nodiscard]] ZERO_ALWAYS_INLINE constexpr Value rounded(Value value) noexcept {
  if constexpr (std::is_arithmetic_v<Acc>) {
    return value;
  } else {
    return static_cast<Value>(static_cast<Acc>(value));
  }
}

/// An element as a number of the arithmetic type; integers are widened with their sign.
template <class Acc, class T>
[[nodiscard]] ZERO_ALWAYS_INLINE constexpr auto widened(T value) noexcept {
  using Value = typename Arithmetic<Acc>::Type;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<Value>(static_cast<Acc>(value));
  } else {
    return convert<Value>(value);
  }
}

/// result[0, Count) = sum over ranks of inputs[r][at, at + Count).
template <class T, class Acc, std::size_t Count, class Pointer>
ZERO_ALWAYS_INLINE void sum_tile(T* result,
                                 Pointer const* inputs,
                                 std::size_t at,
                                 int ranks) noexcept {
  using Value = typename Arithmetic<Acc>::Type;
  Value sum[Count];
  T const* const first = static_cast<T const*>(inputs[0]) + at;
  if (ranks == 1) {
    for (std::size_t i = 0; i < Count; ++i) sum[i] = widened<Acc>(first[i]);
  } else {
    T const* const second = static_cast<T const*>(inputs[1]) + at;
    for (std::size_t i = 0; i < Count; ++i) {
      sum[i] = rounded<Acc>(widened<Acc>(first[i]) + widened<Acc>(second[i]));
    }
  }
  int rank = 2;
  for (; rank + 1 < ranks; rank += 2) {
    T const* const even = static_cast<T const*>(inputs[rank]) + at;
    T const* const odd = static_cast<T const*>(inputs[rank + 1]) + at;
    for (std::size_t i = 0; i < Count; ++i) {
      Value const partial = rounded<Acc>(sum[i] + widened<Acc>(even[i]));
      sum[i] = rounded<Acc>(partial + widened<Acc>(odd[i]));
    }
  }
  if (rank < ranks) {
    T const* const last = static_cast<T const*>(inputs[rank]) + at;
    for (std::size_t i = 0; i < Count; ++i) sum[i] = rounded<Acc>(sum[i] + widened<Acc>(last[i]));
  }
  for (std::size_t i = 0; i < Count; ++i) result[i] = convert<T>(sum[i]);
}

/// The sums of inputs[r][first, first + count), with the inputs typed or not.
template <class T, class Acc, class Pointer>
void sum_range(T* out,
               Pointer const* inputs,
               std::size_t first,
               int ranks,
               std::size_t count,
               Store store) noexcept {
  bool const streaming = is_streaming(store, count * sizeof(T));
  std::size_t done = 0;
  auto const single = [&] {
    sum_tile<T, Acc, 1>(out + done, inputs, first + done, ranks);
    ++done;
  };
  if (streaming) {
    std::size_t const head = bytes_to_line(out) / sizeof(T);
    while (done < head && done < count) single();
  }
  alignas(line_bytes) T sums[sum_width];
  for (; done + sum_width <= count; done += sum_width) {
    sum_tile<T, Acc, sum_width>(sums, inputs, first + done, ranks);
    if (streaming) {
      stream_lines(out + done, sums, sizeof(sums) / line_bytes);
    } else {
      for (std::size_t i = 0; i < sum_width; ++i) out[done + i] = sums[i];
    }
  }
  while (done < count) single();
  if (streaming) publish_streaming_stores();
}

template <class T, class Acc>
void sum_untyped(void* out,
                 void const* const* inputs,
                 std::size_t first,
                 int ranks,
                 std::size_t count,
                 Store store) noexcept {
  sum_range<T, Acc>(static_cast<T*>(out), inputs, first, ranks, count, store);
}

}  // namespace detail

/// out[i] = inputs[0][i] + inputs[1][i] + ... in this order, added in `Acc` and rounded to `T`
/// once.
///
/// The result does not depend on the compiler's flags: there are only additions, so nothing can be
/// contracted, and no sum is split. Integers wrap.
/// @par Shapes  out [count]; inputs [ranks] pointers to [count]; `out` may be one of the inputs
///   (same start); any other overlap is undefined
/// @par Cost    reads ranks * count and writes count elements once; allocates nothing
template <class T, class Acc>
void sum_ranks(T* out,
               T const* const* inputs,
               int ranks,
               std::size_t count,
               Store store = Store::automatic) noexcept {
  detail::sum_range<T, Acc>(out, inputs, 0, ranks, count, store);
}

/// `sum_ranks` for element types known at run time: sums inputs[r][first, first + count), where
/// `first` and `count` are in elements, into `out`.
using SumFunction = void (*)(void* out,
                             void const* const* inputs,
                             std::size_t first,
                             int ranks,
                             std::size_t count,
                             Store store) noexcept;

/// The kernel that sums elements of `dtype` in `accumulate`; null if there is none, which is so if
/// `accumulate` is narrower than `dtype`, or one is an integer and the other is not, or for bytes.
[[nodiscard]] constexpr SumFunction sum_function(DType dtype, DType accumulate) noexcept {
  switch (dtype) {
    case DType::f32:
      if (accumulate == DType::f32) return detail::sum_untyped<float, float>;
      if (accumulate == DType::f64) return detail::sum_untyped<float, double>;
      return nullptr;
    case DType::f64:
      if (accumulate == DType::f64) return detail::sum_untyped<double, double>;
      return nullptr;
    case DType::bf16:
      if (accumulate == DType::f32) return detail::sum_untyped<bf16, float>;
      if (accumulate == DType::f64) return detail::sum_untyped<bf16, double>;
      if (accumulate == DType::bf16) return detail::sum_untyped<bf16, bf16>;
      return nullptr;
    case DType::f16:
      if (accumulate == DType::f32) return detail::sum_untyped<fp16, float>;
      if (accumulate == DType::f64) return detail::sum_untyped<fp16, double>;
      if (accumulate == DType::f16) return detail::sum_untyped<fp16, fp16>;
      return nullptr;
    case DType::i32:
      if (accumulate == DType::i32) return detail::sum_untyped<std::int32_t, std::int32_t>;
      if (accumulate == DType::i64) return detail::sum_untyped<std::int32_t, std::int64_t>;
      return nullptr;
    case DType::i64:
      if (accumulate == DType::i64) return detail::sum_untyped<std::int64_t, std::int64_t>;
      return nullptr;
    case DType::u8: return nullptr;
  }
  return nullptr;
}

}  // namespace zero::inline v0_1::kernel
