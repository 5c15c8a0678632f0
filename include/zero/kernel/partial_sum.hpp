/// @file
/// Sums over ranks that are formed in several places, one after another.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/copy.hpp"
#include "zero/kernel/reduce.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// out[i] = To(in[i]) of arrays whose types are known at run time.
template <class To, class From>
void convert_untyped(void* out, void const* in, std::size_t count) noexcept {
  auto* const to = static_cast<To*>(out);
  auto const* const from = static_cast<From const*>(in);
  kernel::convert(to, from, count);
}

/// The way between an element type and the type in which its sums are formed.
struct Conversions {
  using Function = void (*)(void* out, void const* in, std::size_t count) noexcept;
  Function widen = nullptr;  ///< null where the types are one
  Function round = nullptr;
};

template <class T, class Acc>
inline constexpr Conversions conversions_between{convert_untyped<Acc, T>, convert_untyped<T, Acc>};

[[nodiscard]] inline Conversions conversions(DType dtype, DType accumulate) noexcept {
  if (dtype == DType::bf16 && accumulate == DType::f32) return conversions_between<bf16, float>;
  if (dtype == DType::f16 && accumulate == DType::f32) return conversions_between<fp16, float>;
  if (dtype == DType::f32 && accumulate == DType::f64) return conversions_between<float, double>;
  return {};
}

}  // namespace detail

/// One place's part of a sum over ranks: adds inputs in this order in `accumulate`. Places that
/// pass `out` on as the next one's first input get the bits that `sum_and_square` gets from all
/// inputs.
/// @param dtype       of the elements
/// @param accumulate  dtype that adds up
/// @param out         `count` elements in `dtype` if rounded, otherwise in `accumulate`
/// @param rounded     the sum is complete
/// @param inputs      the first is what the place before has passed on, in `accumulate`, or null in
///                    the first place; the others, at least one, are in `dtype`
/// @param count       elements
/// @param squared     adds the squares of a complete sum
/// @par Shapes  out and each input [count]; none overlaps `out`
/// @par Cost    reads each input once and writes `out` once; what has to be converted passes the
///   nearest cache once more; allocates nothing
/// @pre `sum_function` has a kernel for the types
inline void add_to_partial(DType dtype,
                           DType accumulate,
                           void* out,
                           bool rounded,
                           std::span<void const* const> inputs,
                           std::size_t count,
                           SquaredSum& squared) noexcept {
  SquaredSum none;
  SquaredSum& squares = rounded ? squared : none;
  detail::Conversions const conversion = detail::conversions(dtype, accumulate);
  bool const begins = inputs[0] == nullptr;
  if (conversion.widen == nullptr) {
    if (begins) inputs = inputs.subspan(1);
    sum_and_square(dtype,
                   accumulate,
                   out,
                   inputs.data(),
                   0,
                   static_cast<int>(inputs.size()),
                   count,
                   Store::cached,
                   squares);
    return;
  }
  constexpr std::size_t tile = 512;
  alignas(detail::line_bytes) std::byte sum[tile * sizeof(double)];
  alignas(detail::line_bytes) std::byte term[tile * sizeof(double)];
  void const* const terms[] = {sum, term};
  SumFunction const add = sum_function(accumulate, accumulate);
  auto const piece = [](void const* array, std::size_t at, DType type) {
    return static_cast<std::byte const*>(array) + at * size_of(type);
  };
  for (std::size_t at = 0; at < count; at += tile) {
    std::size_t const now = (std::min)(tile, count - at);
    if (!begins) std::memcpy(sum, piece(inputs[0], at, accumulate), now * size_of(accumulate));
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      bool const first = begins && i == 1;
      conversion.widen(first ? sum : term, piece(inputs[i], at, dtype), now);
      if (!first) add(sum, terms, 0, 2, now, Store::cached);
    }
    auto* const to = static_cast<std::byte*>(out) + at * size_of(rounded ? dtype : accumulate);
    if (rounded) {
      conversion.round(to, sum, now);
      squares.add(dtype, to, now);
    } else {
      std::memcpy(to, sum, now * size_of(accumulate));
    }
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
