/// @file
/// Root codes: optimizer states in eight bits, as the square root of their share of the largest.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/lanes.hpp"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::kernel {

/// What a root code is: `std::int8_t` for numbers with a sign, such as means of gradients, or
/// `std::uint8_t` for means of squares, which have none and of which the root is what is coded.
///
/// A group of 32 neighbours, counted from the first element of a tensor, has one more byte, the
/// scale S, which stands for a power of two that is at least their largest magnitude (their largest
/// root). With N the largest code, code c stands for
///
///     with a sign    c · |c| / N² · 2^(S - 127)
///     without one    (c² / N² · 2^(S - 127))²
///
/// Codes are dense near zero, as the states of a group are. Zeroed memory is all zeros. A group
/// with a number that is not finite has S = 255, which makes all of it NaN.
///
/// All that is computed is exact or rounded once, without a contraction that could matter, so
/// that codes and numbers have the same bits on every processor and on a device.
template <class Code>
concept RootCode = std::same_as<Code, std::int8_t> || std::same_as<Code, std::uint8_t>;

/// Elements of a group, which share a scale.
inline constexpr std::size_t root_group = 32;

/// The scale of a group that is not finite. That of zeros is 0.
inline constexpr std::uint8_t root_not_finite = 255;

/// The codes of one kind.
template <RootCode Code>
struct RootGrid {
  static constexpr bool has_sign = std::same_as<Code, std::int8_t>;      ///< of the numbers
  static constexpr int largest = has_sign ? 127 : 255;                   ///< N
  static constexpr auto square = static_cast<float>(largest * largest);  ///< N²
  /// Of a number that is not 0. A root that became 0, under a mean that did not, would be divided
  /// by; and codes near it would make quotients many times too large.
  static constexpr int least = has_sign ? 0 : 4;
  /// Scales between which neither what is coded nor a factor on the way is subnormal or infinite.
  static constexpr int least_scale = has_sign ? 15 : 76;
  static constexpr int most_scale = has_sign ? 254 : 190;  ///< the other end
};

/// Does a code stand for a number, in a group of such a scale? Files are held against this.
template <RootCode Code>
[[nodiscard]] ZERO_HOST_DEVICE constexpr bool is_root(Code code, std::uint8_t scale) noexcept {
  using Grid = RootGrid<Code>;
  if (scale == 0 || scale == root_not_finite) return code == 0;
  if (scale < Grid::least_scale || scale > Grid::most_scale) return false;
  int const number = code;  // nvcc warns of comparing what has no sign
  int const magnitude = number < 0 ? -number : number;
  return code == 0 || (magnitude >= Grid::least && magnitude <= Grid::largest);
}

/// The scales of groups.
/// @param tops  of each, the largest of the words of its elements without their signs, by which a
///              NaN is larger than infinity
template <RootCode Code, class L>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words root_scales(
    typename L::Words tops) noexcept {
  using Grid = RootGrid<Code>;
  auto bits = tops;
  if constexpr (!Grid::has_sign) bits = L::bits_of(L::sqrt(L::of_bits(tops)));
  auto const power = (bits + 0x7fffffu) >> 23;
  auto const raised = L::larger(power, words<L>(Grid::least_scale));
  auto const most = words<L>(Grid::most_scale);
  auto const scales = L::select(L::less(most, raised), most, raised);
  auto const finite = L::less(tops, words<L>(0x7f800000u));
  auto const of_all = L::select(finite, scales, words<L>(root_not_finite));
  return L::select(L::less(words<L>(0), tops), of_all, words<L>(0));
}

/// The scale of a group. `top` is one of `root_scales`.
template <RootCode Code>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE std::uint8_t root_scale(
    std::uint32_t top) noexcept {
  // A device branches in fewer instructions than it selects.
  if (top >= 0x7f800000u) return root_not_finite;
  if (top == 0) return 0;
  return static_cast<std::uint8_t>(root_scales<Code, OneLane>(top));
}

/// What all numbers of a group are divided by on their way back: decoded, they are this times the
/// square of their code.
template <RootCode Code>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float root_unit(std::uint8_t scale) noexcept {
  // The same bits as a division of the power of two: nothing is subnormal.
  constexpr float inverse = 1.f / RootGrid<Code>::square;
  return OneLane::of_bits(std::uint32_t{scale} << 23) * inverse;
}

/// The numbers of codes.
/// @param codes  with their signs
/// @param unit   `root_unit` of their group's scale
template <RootCode Code, class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Floats decode_root(
    typename L::Words codes, float unit) noexcept {
  auto const c = L::number(codes);
  if constexpr (RootGrid<Code>::has_sign) {
    return (c * L::of_bits(L::bits_of(c) & 0x7fffffffu)) * unit;
  } else {
    auto const root = (c * c) * unit;
    return root * root;
  }
}

/// What the codes of a group have in common.
template <RootCode Code>
struct RootLevels {
  /// Of the group's scale.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE explicit RootLevels(std::uint8_t scale) noexcept
      : factor(OneLane::of_bits(factors<OneLane>(scale))),
        kept(scale == root_not_finite ? 0u : ~0u) {}
  /// Of a group that is finite, if what becomes of its codes counts.
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE explicit RootLevels(float factor_of_group) noexcept
      : factor(factor_of_group), kept(~0u) {}

  /// The bits of the factors of scales.
  template <class L>
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE static typename L::Words factors(
      typename L::Words scales) noexcept {
    return words<L>(std::bit_cast<std::uint32_t>(RootGrid<Code>::square) + (127u << 23)) -
           (scales << 23);
  }

  float factor;  ///< makes of magnitudes what their codes are the roots of; a power of two times N²
  std::uint32_t kept;  ///< bits that codes may have
};

namespace detail {

/// What is between two codes, and the lower one.
template <class L>
struct BetweenRoots {
  typename L::Floats level;    ///< at most N²; the code is near its root
  typename L::Floats root;     ///< of the level
  typename L::Words lower;     ///< the root without its fraction
  typename L::Floats numbers;  ///< `lower`, as numbers
};

template <RootCode Code, class L>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE BetweenRoots<L> between_roots(
    typename L::Floats x, RootLevels<Code> const& group) noexcept {
  using Grid = RootGrid<Code>;
  typename L::Floats magnitude;
  if constexpr (Grid::has_sign) {
    magnitude = L::of_bits(L::bits_of(x) & 0x7fffffffu);
  } else {
    magnitude = L::sqrt(x);
  }
  BetweenRoots<L> result;
  auto const most = typename L::Floats{} + Grid::square;
  auto const level = magnitude * group.factor;
  // What does not compare becomes N² too, so that all that follows is defined.
  result.level = L::smaller(level, most);
  result.root = L::sqrt(result.level);
  result.lower = L::truncated(result.root);
  result.numbers = L::number(result.lower);
  return result;
}

template <RootCode Code, class L>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words root_code(
    typename L::Words magnitude, typename L::Floats x, RootLevels<Code> const& group) noexcept {
  if constexpr (RootGrid<Code>::has_sign) {
    return L::with_sign_of(x, magnitude) & group.kept;
  } else {
    auto const zeros = words<L>(0);
    auto const least = L::select(typename L::Floats{} < x, words<L>(RootGrid<Code>::least), zeros);
    return L::larger(magnitude, least) & group.kept;
  }
}

}  // namespace detail

/// The codes of numbers, each rounded up with the probability that keeps the mean of what is coded:
/// a state that is rounded to nearest in every step never leaves a code if a step moves it by less
/// than half of the distance to the next one.
/// @param x       the numbers; not negative if codes have no sign
/// @param group   of the scale that `root_scale` gives for all numbers of the group
/// @param random  16 random bits for each
/// @return the codes in the lowest bits; of codes with a sign, all bits are that
template <RootCode Code, class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words encode_root(
    typename L::Floats x, RootLevels<Code> const& group, typename L::Words random) noexcept {
  auto const at = detail::between_roots<Code, L>(x, group);
  // All of this is exact but for one product, fused or not.
  auto const past = at.level - at.numbers * at.numbers;
  auto const gap = at.numbers * 2.f + 1.f;
  auto const chance = L::number(random) * 0x1p-16f + 0x1p-17f;
  return detail::root_code<Code, L>(L::one_more(at.lower, chance * gap < past), x, group);
}

/// The codes of numbers, to nearest, of two as near the even one: for conversions. A number that
/// was decoded gets its code back in a group of the same scale. Arguments and result are those of
/// `encode_root`.
template <RootCode Code, class L = OneLane>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE typename L::Words encode_root_to_nearest(
    typename L::Floats x, RootLevels<Code> const& group) noexcept {
  auto const at = detail::between_roots<Code, L>(x, group);
  auto const rest = at.root - at.numbers;
  auto const half = typename L::Floats{} + 0.5f;
  auto const of_tie = L::select(rest < half, words<L>(0), at.lower & 1u);
  auto const raise = L::select(half < rest, words<L>(1), of_tie);
  return detail::root_code<Code, L>(at.lower + raise, x, group);
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
