/// @file
/// Root codes on a device: the host's, in fewer instructions.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/math.hpp"
#include "zero/device/real.hpp"
#include "zero/kernel/lanes.hpp"
#include "zero/kernel/root_code.hpp"

#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

/// A code in one of the four bytes of a word, as a number.
template <kernel::RootCode Code>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float code_of_word(std::uint32_t word,
                                                                     unsigned place) noexcept {
#if defined(__CUDA_ARCH__)
  // All 32 bits of it, since a device converts others at a quarter of the rate.
  unsigned const upper = kernel::RootGrid<Code>::has_sign ? 0x8880u + place * 0x1110u : 0x4440u;
  // `__byte_perm` would leave out the bits of its selector that ask for signs.
  asm("prmt.b32 %0, %0, 0, %1;" : "+r"(word) : "r"(upper + place));
  return kernel::OneLane::number(word);
#else
  return static_cast<float>(static_cast<Code>(word >> (8 * place) & 0xffu));
#endif
}

/// What `kernel::decode_root` makes of a code that is a number itself.
template <kernel::RootCode Code>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float number_of_code(float code,
                                                                       float unit) noexcept {
  if constexpr (kernel::RootGrid<Code>::has_sign) {
    return code * math::abs(code) * unit;
  } else {
    float const root = code * code * unit;
    return root * root;
  }
}

/// A word of the lowest bytes of four.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE std::uint32_t lowest_bytes(
    std::uint32_t const (&words)[4]) noexcept {
#if defined(__CUDA_ARCH__)
  return __byte_perm(
      __byte_perm(words[0], words[1], 0x0040u), __byte_perm(words[2], words[3], 0x0040u), 0x5410u);
#else
  return (words[0] & 0xffu) | (words[1] & 0xffu) << 8 | (words[2] & 0xffu) << 16 | words[3] << 24;
#endif
}

/// x, or the end of [0, 1] that it is beyond.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float saturated(float x) noexcept {
#if defined(__CUDA_ARCH__)
  return __saturatef(x);
#else
  return x > 0.f ? (x < 1.f ? x : 1.f) : 0.f;
#endif
}

/// x, or `least` if that is larger and a number is above 0.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float at_least_above_0(float number,
                                                                         float x,
                                                                         float least) noexcept {
#if defined(__CUDA_ARCH__)
  // Two instructions; nvcc makes three.
  asm("{ .reg .pred above; setp.gt.f32 above, %1, 0f00000000; @above max.f32 %0, %0, %2; }"
      : "+f"(x)
      : "f"(number), "f"(least));
  return x;
#else
  return number > 0.f && x < least ? least : x;
#endif
}

/// Near the root of a number in [0, 1]: within a millionth of it. Subnormal numbers may be 0.
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float near_root(float x) noexcept {
#if defined(__CUDA_ARCH__)
  float root;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(root) : "f"(x));
  return root;
#else
  return math::sqrt(x);
#endif
}

/// Twice what `kernel::encode_root` makes of 16 random bits: the middle of their share of [0, 1).
/// @param word  the bits of two numbers
/// @param half  which of both: the lower is 0
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE float root_chance(std::uint32_t word,
                                                                    unsigned half) noexcept {
  // As the lowest bits of 256 they need no conversion.
  std::uint32_t const bits = 0x43800000u + (half == 0 ? word & 0xffffu : word >> 16);
  return kernel::OneLane::of_bits(bits) - (256.f - 0x1p-16f);
}

/// A code, or the one below, and which it is.
struct RootOrBelow {
  float biased;  ///< the lower of both, which is the lowest bits of this
  float lower;   ///< the same as a number
  bool raised;   ///< is the code one more?
};

/// The code c that a level N² · share becomes: the least with N² · share <= c² + u · (2c + 1).
///
/// `kernel::encode_root` asks whether the root without its fraction is raised. But whichever number
/// is the code or one below, the same question gives the same answer, and the nearest to root - u
/// is such, even if the root is off by 0.05: of a root n + d, d < 1, it is n + 1 only if
/// u <= d - 1/2, and n is raised then; it is n - 1 only if u >= d + 1/2, and n is not. Both hold
/// with so much room that it does not matter how a product is rounded.
/// @param share   in [0, 1]
/// @param root    near its root
/// @param chance  2 u, of `root_chance`
template <kernel::RootCode Code>
[[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE RootOrBelow root_or_below(float share,
                                                                            float root,
                                                                            float chance) noexcept {
  using Grid = kernel::RootGrid<Code>;
  constexpr auto most = static_cast<float>(Grid::largest);
  RootOrBelow result;
  // Added to 2^23, a number is rounded to a whole one.
  result.biased = saturated(root - chance * (0.5f / most)) * most + 0x1p23f;
  result.lower = result.biased - 0x1p23f;
  // All of this is exact but for one product, as there.
  auto const level = static_cast<float>(Real<float>(share) * Grid::square);
  float const past = level - result.lower * result.lower;
  result.raised = chance * (result.lower + 0.5f) < past;
  return result;
}

/// Codes of the numbers of a group, one by one: those of `kernel::encode_root`, if the group is
/// finite.
template <kernel::RootCode Code>
class RootEncoder {
 public:
  /// @param scale  of the group
  ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE explicit RootEncoder(std::uint8_t scale) noexcept {
    // The power of two that makes magnitudes shares of that of the scale.
    std::uint32_t const exponent = 254u - scale;
    power_ = exponent == 0 ? 0x1p-127f : L::of_bits(exponent << 23);
  }

  /// @param x  a number of the group
  /// @param chance  `root_chance` of its random bits
  /// @return the code in the lowest byte; what is above it is no part of it
  [[nodiscard]] ZERO_HOST_DEVICE ZERO_ALWAYS_INLINE std::uint32_t operator()(
      float x, float chance) const noexcept {
    if constexpr (Grid::has_sign) {
      float const share = saturated(math::abs(x) * power_);
      auto const at = root_or_below<Code>(share, near_root(share), chance);
      float const code = at.raised ? at.lower + 1.f : at.lower;
      // Added to 1.5 · 2^23, a whole number is the lowest bits, with its sign.
      return L::bits_of(L::of_bits(L::bits_of(code) | (L::bits_of(x) & 0x80000000u)) + 0x1.8p23f);
    } else {
      // If a rule takes this root as well, it is taken once.
      float const root = static_cast<float>(Real<float>::sqrt(x));
      // The level of this is 16, of which the root is the least code.
      constexpr float least = 0x1.020304p-12f;
      float const share = at_least_above_0(x, saturated(root * power_), least);
      auto const at = root_or_below<Code>(share, near_root(share), chance);
      return L::bits_of(at.raised ? at.biased + 1.f : at.biased);
    }
  }

 private:
  using Grid = kernel::RootGrid<Code>;
  using L = kernel::OneLane;

  float power_;
};

}  // namespace zero::inline ZERO_NAMESPACE::device
