/// @file
/// Master weights beside parameters of 16 bits, as what rounding has taken from them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/float16.hpp"
#include "zero/kernel/bf16_rounding.hpp"
#include "zero/kernel/lanes.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// What a remainder is: 16 bits, with which a master is whole, or 8, with which it has the upper 24
/// bits of its word.
///
/// A parameter is its master rounded to bf16, half away from zero. Only this rounding can be undone
/// by 16 bits: the word of the master is that of the parameter and the remainder behind it, less
/// one unit of the parameter if the remainder's highest bit says that it was rounded up. Halves
/// that went to even would leave open which way they went.
template <class Rest>
concept Remainder = std::same_as<Rest, std::uint16_t> || std::same_as<Rest, std::uint8_t>;

/// A master in two parts.
template <class Words>
struct MasterParts {
  Words parameter;  ///< bf16, in the lower half
  Words rest;       ///< in the lowest bits; the upper ones are 0
};

/// The parts of masters of which NaNs are as `one_nan` leaves them.
/// @param bits  of the masters; for remainders of 8 bits, the lowest 8 do not count
template <Remainder Rest, class L>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE MasterParts<typename L::Words> split_plain_master(
    typename L::Words bits) noexcept {
  constexpr int width = 8 * sizeof(Rest);
  return {(bits + 0x8000u) >> 16, (bits >> (16 - width)) & ((1u << width) - 1u)};
}

/// The parts of masters. With 16 bits that is every word but which NaN it was.
/// @param bits  of the masters; for remainders of 8 bits as `narrowed` leaves them
template <Remainder Rest, class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE MasterParts<typename L::Words> split_master(
    typename L::Words bits) noexcept {
  if constexpr (sizeof(Rest) == 2) bits = one_nan<L>(bits);
  return split_plain_master<Rest, L>(bits);
}

/// The masters of parts: the bits that were split.
/// @param parameter  bf16, in the lower half; bits above it do not count
/// @param rest       with zeros above its bits
template <Remainder Rest, class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words join_master(
    typename L::Words parameter, typename L::Words rest) noexcept {
  constexpr int bits = 8 * sizeof(Rest);
  return ((parameter - (rest >> (bits - 1))) << 16) | (rest << (16 - bits));
}

/// How `narrowed` rounds to nearest, half away from zero, in place of random bits.
inline constexpr std::uint32_t narrowed_to_nearest = 0x80;

/// Masters of which the lower 8 bits are 0, those that a remainder of 8 bits can keep: with 8
/// random bits the mean of all cases is the master.
///
/// An update that moves a master by less than half of a unit of these is lost where it is rounded
/// to nearest, step after step. What has no larger finite magnitude becomes infinite.
/// @param bits    of the masters
/// @param random  8 random bits for each
template <class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words narrowed(
    typename L::Words bits, typename L::Words random) noexcept {
  return (one_nan<L>(bits) + random) & 0xffffff00u;
}

/// masters[i] = what parameters[i] and rests[i] are the parts of, for i in [0, count).
/// @par Cost  one pass
template <Isa I = native, Remainder Rest>
void join_masters(float* masters,
                  bf16 const* parameters,
                  Rest const* rests,
                  std::size_t count) noexcept {
  in_lanes<I>(count,
              [&]<class L, std::size_t... K>(L, std::index_sequence<K...>, std::size_t first) {
                auto const join = [&](std::size_t i) {
                  auto const parameter = L::load(&parameters[i].bits);
                  L::store(join_master<Rest, L>(parameter, L::load(rests + i)), masters + i);
                };
                (join(first + K * L::count), ...);
              });
}

/// parameters[i] and rests[i] = the parts of masters[i], for i in [0, count); where one of both is
/// null, the other alone.
/// With remainders of 8 bits, random[i] has as many random ones; null rounds to nearest.
/// @par Cost  one pass
template <Isa I = native, Remainder Rest>
void split_masters(bf16* parameters,
                   Rest* rests,
                   float const* masters,
                   std::size_t count,
                   std::uint8_t const* random = nullptr) noexcept {
  in_lanes<I>(count,
              [&]<class L, std::size_t... K>(L, std::index_sequence<K...> numbers, std::size_t i) {
                using Words = typename L::Words;
                Words all[] = {L::load(masters + i + K * L::count)...};
                leave_one_nan<L>(all, numbers);
                if constexpr (sizeof(Rest) == 1) {
                  if (random == nullptr) {
                    ((all[K] += narrowed_to_nearest), ...);
                  } else {
                    ((all[K] += L::load(random + i + K * L::count)), ...);
                  }
                }
                MasterParts<Words> const parts[] = {split_plain_master<Rest, L>(all[K])...};
                Words const halves[] = {parts[K].parameter...};
                Words const rest[] = {parts[K].rest...};
                if (parameters != nullptr) L::store_all(halves, &parameters[i].bits);
                if (rests != nullptr) L::store_all(rest, rests + i);
              });
}

/// What is left of a master of which its parameter has the rest: the element of an array.
template <Remainder Rest>
struct BasicRestOfMaster {
  /// Remainders of 8 bits are rounded stochastically, those of 16 not at all.
  using Random = std::conditional_t<sizeof(Rest) == 1, std::uint8_t, void>;

  Rest bits = 0;  ///< as `split_master` has them

  /// As `CodedElement` says.
  template <Isa I, std::size_t, class Arrays>
  static void read(float* out, Arrays const& from) noexcept {
    join_masters<I>(out, &from.parameter->value, &from.master->bits, from.count);
  }
  /// As `CodedElement` says; writes the parameters, too.
  template <Isa I, std::size_t, class Arrays>
  static void write(Arrays const& to, float const* in, std::uint8_t const* random) noexcept {
    split_masters<I>(&to.parameter->value, &to.master->bits, in, to.count, random);
  }
  /// As `CodedElement` says.
  template <class Parameter>
  [[nodiscard]] ZERO_HOST_DEVICE float number(Parameter const& parameter) const noexcept {
    return OneLane::of_bits(join_master<Rest>(parameter.value.bits, bits));
  }
  /// As `CodedElement` says; writes the parameter, too.
  template <class Parameter>
  ZERO_HOST_DEVICE void assign(Parameter& parameter, float number, std::uint32_t random) noexcept {
    auto whole = OneLane::bits_of(number);
    if constexpr (sizeof(Rest) == 1) whole = narrowed(whole, random);
    auto const parts = split_master<Rest>(whole);
    parameter.value.bits = static_cast<std::uint16_t>(parts.parameter);
    bits = static_cast<Rest>(parts.rest);
  }
};
/// With which a master is whole.
using RestOfMaster = BasicRestOfMaster<std::uint16_t>;
/// With which it has 24 bits.
using ShortRestOfMaster = BasicRestOfMaster<std::uint8_t>;

}  // namespace zero::inline ZERO_NAMESPACE::kernel
