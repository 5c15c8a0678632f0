// bf16 that kernels round half away from zero: every upper half of a word, with what decides.
#include "zero/kernel/half_away.hpp"

#include "support/test.hpp"
#include "zero/kernel/convert.hpp"
#include "zero/kernel/rounded.hpp"
#include "zero/precision/mixed.hpp"

namespace half_away_test {
namespace {

using zero::kernel::HalfAwayBf16;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Found by looking at both neighbours, in fp64; beyond the largest bf16 the next power of two.
std::uint16_t nearest(float x) {
  std::uint32_t const sign = bits_of(x) & 0x80000000u;
  if (std::isnan(x)) return static_cast<std::uint16_t>((sign | 0x7fc00000u) >> 16);
  std::uint32_t const low = bits_of(x) & 0x7fff0000u;
  if (low == 0x7f800000u) return static_cast<std::uint16_t>((sign | low) >> 16);
  auto const value = [](std::uint32_t magnitude) {
    return magnitude == 0x7f800000u ? 0x1p128 : double{std::bit_cast<float>(magnitude)};
  };
  double const here = std::abs(double{x});
  bool const up = value(low + 0x10000u) - here <= here - value(low);
  return static_cast<std::uint16_t>((sign | (up ? low + 0x10000u : low)) >> 16);
}

std::vector<float> words() {
  std::vector<float> all;
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (std::uint32_t const low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      all.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  return all;
}

}  // namespace

TEST_CASE("half away from zero: to the nearest, of two as near the larger") {
  auto const all = words();
  std::vector<HalfAwayBf16> rounded(all.size());
  std::vector<zero::bf16> on_host(all.size());
  // Not a multiple of any pack, and from an odd element on.
  zero::kernel::convert(rounded.data() + 1, all.data() + 1, all.size() - 2);
  rounded.front() = HalfAwayBf16(all.front());
  rounded.back() = HalfAwayBf16(all.back());
  zero::HalfAway::split(on_host.data(), nullptr, all.data(), all.size());
  std::size_t wrong = 0;
  std::size_t even = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::uint16_t const right = nearest(all[i]);
    wrong += rounded[i].value.bits != right || on_host[i].bits != right ? 1u : 0u;
    wrong += HalfAwayBf16(all[i]).value.bits != right ? 1u : 0u;
    even += std::isnan(all[i]) || zero::bf16(all[i]).bits == right ? 0u : 1u;
  }
  CHECK(wrong == 0);
  // Half of the ties, which are one in six here: those of even upper halves.
  CHECK(even == (0x10000u - 0x100u) / 2);
  CHECK(static_cast<float>(HalfAwayBf16(3.f)) == 3.f);
}

TEST_CASE("half away from zero: a parameter that is its master, rounded otherwise, is found") {
  std::vector<float> const masters(700, 1.f + 0x1p-8f);
  std::vector<HalfAwayBf16> parameters(700, HalfAwayBf16(masters[0]));
  std::uint64_t first = ~std::uint64_t{0};
  zero::kernel::find_unrounded(&first, parameters.data(), masters.data(), masters.size(), 5);
  CHECK(first == ~std::uint64_t{0});
  parameters[600].value = zero::bf16(masters[600]);
  zero::kernel::find_unrounded(&first, parameters.data(), masters.data(), masters.size(), 5);
  CHECK(first == 605);
}

}  // namespace half_away_test
