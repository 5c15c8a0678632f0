/// @file
/// From fp32 to bf16 in other ways than to nearest even.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/lanes.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// Numbers as they are, but for NaNs, which become one quiet NaN of each sign: of all words, these
/// are the only ones that a carry from below would make something else.
/// @param bits  of the numbers
template <class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words one_nan(
    typename L::Words bits) noexcept {
  auto const is_nan = L::less(words<L>(0x7f800000u), bits & 0x7fffffffu);
  return L::select(is_nan, (bits & 0x80000000u) | 0x7fc00000u, bits);
}

/// The same for several, of which a NaN is rare.
template <class L, std::size_t... K>
ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE void leave_one_nan(typename L::Words (&bits)[sizeof...(K)],
                                                       std::index_sequence<K...>) noexcept {
  auto top = words<L>(0);
  ((top = L::larger(top, bits[K] & 0x7fffffffu)), ...);
  if (L::any(L::less(words<L>(0x7f800000u), top))) ((bits[K] = one_nan<L>(bits[K])), ...);
}

/// bf16 of fp32, to nearest, of two as near the larger magnitude.
/// @param bits  of the numbers
/// @return those of bf16, in the lower half
template <class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words round_half_away(
    typename L::Words bits) noexcept {
  return (one_nan<L>(bits) + 0x8000u) >> 16;
}

/// bf16 of fp32, with a larger magnitude in as many of 2^16 cases as what is cut off has units, so
/// that the mean of all cases is the number. What has no larger finite magnitude becomes infinite
/// in these cases. A bf16 stays what it is, as do infinity and NaN.
/// @param bits    of the numbers
/// @param random  16 random bits for each
/// @return those of bf16, in the lower half
template <class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words round_stochastically(
    typename L::Words bits, typename L::Words random) noexcept {
  return (one_nan<L>(bits) + random) >> 16;
}

/// out[i] = in[i], rounded stochastically with the 16 bits of random[i], for i in [0, count).
/// @par Cost  one pass
template <Isa I = native>
void round_stochastically(bf16* out,
                          float const* in,
                          std::uint16_t const* random,
                          std::size_t count) noexcept {
  in_lanes<I>(count,
              [&]<class L, std::size_t... K>(L, std::index_sequence<K...> numbers, std::size_t i) {
                typename L::Words all[] = {L::load(in + i + K * L::count)...};
                leave_one_nan<L>(all, numbers);
                ((all[K] = (all[K] + L::load(random + i + K * L::count)) >> 16), ...);
                L::store_all(all, &out[i].bits);
              });
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
