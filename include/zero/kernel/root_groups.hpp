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
#include <utility>

namespace zero::inline ZERO_NAMESPACE::kernel {

namespace detail {

/// The numbers of a group's vectors.
template <class L>
using VectorsOfGroup = std::make_index_sequence<root_group / L::count>;
/// Vectors whose codes are stored at once.
inline constexpr std::size_t stored_at_once = 4;

/// In each lane, the largest of a group's words without their signs.
template <class L, std::size_t... K>
[[nodiscard]] ZERO_ALWAYS_INLINE typename L::Words tops_of_group(
    float const* values, std::index_sequence<K...>) noexcept {
  auto top = words<L>(0);
  ((top = L::larger(top, L::load(values + K * L::count) & 0x7fffffffu)), ...);
  return top;
}

template <RootCode Code, class L, std::size_t... K>
ZERO_ALWAYS_INLINE void encode_vectors(Code* codes,
                                       RootLevels<Code> const& group,
                                       float const* values,
                                       std::uint16_t const* random,
                                       std::index_sequence<K...>) noexcept {
  auto const code_of = [&](std::size_t i) {
    auto const x = L::of_bits(L::load(values + i));
    return random == nullptr ? encode_root_to_nearest<Code, L>(x, group)
                             : encode_root<Code, L>(x, group, L::load(random + i));
  };
  typename L::Words const all[] = {code_of(K * L::count)...};
  L::store_all(all, codes);
}

/// As many groups as there are lanes. Scales come first, since the way to one takes as long as the
/// codes of a group.
/// @param random  16 bits for each element; null to round to nearest
template <RootCode Code, class L>
ZERO_ALWAYS_INLINE void encode_groups(Code* codes,
                                      std::uint8_t* scales,
                                      float const* values,
                                      std::uint16_t const* random) noexcept {
  typename L::Words tops[L::count];
  for (std::size_t g = 0; g < L::count; ++g) {
    tops[g] = tops_of_group<L>(values + g * root_group, VectorsOfGroup<L>{});
  }
  auto const of_groups = root_scales<Code, L>(L::largest_of_each(tops));
  L::store(of_groups, scales);
  float factors[L::count];
  L::store(RootLevels<Code>::template factors<L>(of_groups), static_cast<float*>(factors));
  constexpr std::size_t at_once = stored_at_once * L::count;
  for (std::size_t i = 0; i < L::count * root_group; i += at_once) {
    RootLevels<Code> const group(factors[i / root_group]);
    auto const* const bits = random == nullptr ? nullptr : random + i;
    encode_vectors<Code, L>(
        codes + i, group, values + i, bits, std::make_index_sequence<stored_at_once>{});
  }
  if (!L::any(L::less(words<L>(root_not_finite - 1u), of_groups))) return;
  for (std::size_t g = 0; g < L::count; ++g) {
    if (scales[g] == root_not_finite) std::fill_n(codes + g * root_group, root_group, Code{0});
  }
}

/// What `encode_roots` does.
template <Isa I, RootCode Code>
ZERO_ALWAYS_INLINE void encode_all(Code* codes,
                                   std::uint8_t* scales,
                                   float const* values,
                                   std::size_t count,
                                   std::uint16_t const* random) noexcept {
  using L = Lanes<I>;
  constexpr std::size_t at_once = L::count * root_group;
  std::size_t const whole = count - count % at_once;
  for (std::size_t i = 0; i < whole; i += at_once) {
    auto const* const bits = random == nullptr ? nullptr : random + i;
    encode_groups<Code, L>(codes + i, scales + i / root_group, values + i, bits);
  }
  if (count == whole) return;
  Code last[at_once];
  std::uint8_t last_scales[L::count];
  float padded[at_once] = {};
  std::uint16_t bits[at_once] = {};
  std::copy_n(values + whole, count - whole, std::begin(padded));
  if (random != nullptr) std::copy_n(random + whole, count - whole, std::begin(bits));
  encode_groups<Code, L>(std::begin(last),
                         std::begin(last_scales),
                         std::begin(padded),
                         random == nullptr ? nullptr : std::begin(bits));
  std::copy_n(std::begin(last), count - whole, codes + whole);
  std::copy_n(std::begin(last_scales),
              (count - whole + root_group - 1) / root_group,
              scales + whole / root_group);
}

template <RootCode Code, class L, std::size_t... K>
ZERO_ALWAYS_INLINE void decode_group(float* out,
                                     Code const* codes,
                                     float unit,
                                     std::index_sequence<K...>) noexcept {
  (L::store(L::bits_of(decode_root<Code, L>(L::load(codes + K * L::count), unit)),
            out + K * L::count),
   ...);
}

}  // namespace detail

/// out[i] = the number of codes[i] for i in [0, count), in a group of the scale scales[i / 32].
/// @par Cost  one pass
template <Isa I = native, RootCode Code>
void decode_roots(float* out,
                  Code const* codes,
                  std::uint8_t const* scales,
                  std::size_t count) noexcept {
  using L = Lanes<I>;
  std::size_t i = 0;
  for (; count - i >= root_group; i += root_group) {
    float const unit = root_unit<Code>(*scales++);
    detail::decode_group<Code, L>(out + i, codes + i, unit, detail::VectorsOfGroup<L>{});
  }
  for (; i < count; ++i) {
    float const unit = root_unit<Code>(*scales);
    out[i] = decode_root<Code>(OneLane::load(codes + i), unit);
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
  // Which of both it is, is the same for all.
  if (random == nullptr) {
    detail::encode_all<I>(codes, scales, values, count, nullptr);
  } else {
    detail::encode_all<I>(codes, scales, values, count, random);
  }
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
