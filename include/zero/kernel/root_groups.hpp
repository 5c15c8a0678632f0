/// @file
/// Arrays of root codes on the host, group by group.
#pragma once

#include "zero/base/config.hpp"
#include "zero/kernel/lanes.hpp"
#include "zero/kernel/root_code.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// The largest of the words of a group without their signs.
template <class L>
[[nodiscard]] ZERO_ALWAYS_INLINE std::uint32_t top_of_group(float const* values) noexcept {
  auto top = L::load(values) & 0x7fffffffu;
  for (std::size_t i = L::count; i < root_group; i += L::count) {
    auto const magnitude = L::load(values + i) & 0x7fffffffu;
    top = L::select(L::less(top, magnitude), magnitude, top);
  }
  return L::largest(top);
}

/// Whole groups. Scales come first: the way to one takes as long as the codes of a group, and
/// needs little of the processor, which so goes several of these ways at once.
/// @param random  16 bits for each element; null to round to nearest
template <RootCode Code, class L>
ZERO_ALWAYS_INLINE void encode_groups(Code* codes,
                                      std::uint8_t* scales,
                                      float const* values,
                                      std::size_t groups,
                                      std::uint16_t const* random) noexcept {
  for (std::size_t g = 0; g < groups; ++g) {
    scales[g] = root_scale<Code>(top_of_group<L>(values + g * root_group));
  }
  for (std::size_t i = 0; i < groups * root_group; i += 4 * L::count) {
    RootLevels<Code> const group(scales[i / root_group]);
    typename L::Words all[4];
    for (std::size_t k = 0; k < 4; ++k) {
      std::size_t const at = i + k * L::count;
      auto const x = L::of_bits(L::load(values + at));
      all[k] = random == nullptr ? encode_root_to_nearest<Code, L>(x, group)
                                 : encode_root<Code, L>(x, group, L::load(random + at));
    }
    L::store_bytes(all, codes + i);
  }
}

}  // namespace detail

/// out[i] = the number of codes[i] for i in [0, count), in a group of the scale scales[i / 32].
/// @par Cost  one pass
template <Isa I = native, RootCode Code>
void decode_roots(float* out,
                  Code const* codes,
                  std::uint8_t const* scales,
                  std::size_t count) noexcept {
  for (std::size_t begin = 0; begin < count; begin += root_group) {
    float const unit = root_unit<Code>(*scales++);
    in_lanes<I>((std::min)(count - begin, root_group), [&](auto lanes, std::size_t i) {
      using L = decltype(lanes);
      auto const values = decode_root<Code, L>(L::load(codes + begin + i), unit);
      L::store(L::bits_of(values), out + begin + i);
    });
  }
}

/// codes[i] and scales[i / 32] of values[i] for i in [0, count), where a group begins at 0; the
/// last group may be a part of one.
/// random[i] has 16 random bits, by which it is rounded; null rounds to nearest.
/// @par Cost  two passes over each group
template <Isa I = native, RootCode Code>
void encode_roots(Code* codes,
                  std::uint8_t* scales,
                  float const* values,
                  std::size_t count,
                  std::uint16_t const* random = nullptr) noexcept {
  // A few groups, so that values are near when they are read again.
  constexpr std::size_t some = 8 * root_group;
  while (count >= root_group) {
    std::size_t const taken = (std::min)(count, some) / root_group * root_group;
    detail::encode_groups<Code, Lanes<I>>(codes, scales, values, taken / root_group, random);
    codes += taken;
    scales += taken / root_group;
    values += taken;
    if (random != nullptr) random += taken;
    count -= taken;
  }
  if (count == 0) return;
  Code last[root_group];
  float padded[root_group] = {};
  std::uint16_t bits[root_group] = {};
  std::copy_n(values, count, std::begin(padded));
  if (random != nullptr) {
    std::copy_n(random, count, std::begin(bits));
    random = std::begin(bits);
  }
  detail::encode_groups<Code, Lanes<I>>(std::begin(last), scales, std::begin(padded), 1, random);
  std::copy_n(std::begin(last), count, codes);
}

/// The first of `count` codes that stands for no number; `count` if all do.
/// @par Cost  one pass
template <RootCode Code>
[[nodiscard]] std::size_t first_that_is_no_root(Code const* codes,
                                                std::uint8_t const* scales,
                                                std::size_t count) noexcept {
  std::size_t i = 0;
  while (i < count && is_root(codes[i], scales[i / root_group])) ++i;
  return i;
}

}  // namespace zero::inline ZERO_NAMESPACE::kernel
