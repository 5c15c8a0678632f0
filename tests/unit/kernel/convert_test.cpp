#include <zero/kernel/convert.hpp>
#include <zero/kernel/plain_pack.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using zero::bf16;
using zero::fp16;
using zero::kernel::Pack;

/// The vectors of this unit's flags, and those for a processor nothing is known about.
using Native = Pack<zero::kernel::native>;
using Generic = Pack<zero::kernel::isa::generic>;
/// Those for a compiler without vectors.
using Plain = zero::kernel::PlainPack<zero::kernel::isa::plain>;

template <class Half>
float scalar(std::uint16_t bits) {
  return static_cast<float>(Half::from_bits(bits));
}

/// Every float whose rounding to 16 bits is interesting: all upper halves, and lower halves at and
/// next to every tie.
std::vector<float> floats() {
  std::vector<float> result;
  for (std::uint32_t high = 0; high <= 0xffff; ++high) {
    for (std::uint32_t low : {0x0000u,
                              0x0001u,
                              0x0fffu,
                              0x1000u,
                              0x1001u,
                              0x2000u,
                              0x2fffu,
                              0x3000u,
                              0x3001u,
                              0x7fffu,
                              0x8000u,
                              0x8001u,
                              0xf000u,
                              0xffffu}) {
      result.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  while (result.size() % 16 != 0) result.push_back(0.f);
  return result;
}

template <class V, class Half>
struct Conversion {
  using Vector = V;
  using Type = Half;
};

}  // namespace

TEST_CASE_TEMPLATE("a pack converts with the bits of the scalar conversions",
                   T,
                   Conversion<Native, bf16>,
                   Conversion<Native, fp16>,
                   Conversion<Generic, bf16>,
                   Conversion<Generic, fp16>,
                   Conversion<Plain, bf16>,
                   Conversion<Plain, fp16>) {
  using V = typename T::Vector;
  using Half = typename T::Type;
  bool same = true;  // one assertion for all: doctest takes its time over a million
  SUBCASE("all 65536 patterns to fp32") {
    // Also signalling NaNs, among numbers and alone in their vector.
    for (std::uint32_t first = 0; first <= 0xffff; first += V::lanes) {
      Half halves[V::lanes];
      float wide[V::lanes];
      for (std::uint32_t i = 0; i < V::lanes; ++i) {
        halves[i] = Half::from_bits(static_cast<std::uint16_t>(first + i));
      }
      V::load(&halves[0]).store(&wide[0]);
      for (std::uint32_t i = 0; i < V::lanes; ++i) {
        auto const expected = scalar<Half>(static_cast<std::uint16_t>(first + i));
        same =
            same && std::bit_cast<std::uint32_t>(wide[i]) == std::bit_cast<std::uint32_t>(expected);
      }
    }
  }
  SUBCASE("from fp32, with every tie") {
    auto const from = floats();
    for (std::size_t first = 0; first < from.size(); first += 2 * V::lanes) {
      Half halves[2 * V::lanes];
      alignas(16) Half streamed[2 * V::lanes];
      V const low = V::load(from.data() + first);
      V const high = V::load(from.data() + first + V::lanes);
      low.store(&halves[0]);
      high.store(&halves[V::lanes]);
      V::stream(low, high, &streamed[0]);
      V::fence();
      for (std::size_t i = 0; i < 2 * V::lanes; ++i) {
        same = same && halves[i] == Half(from[first + i]) && streamed[i] == halves[i];
      }
    }
  }
  CHECK(same);
}

TEST_CASE_TEMPLATE("convert and add are the scalar expressions at any offset and count",
                   Half,
                   bf16,
                   fp16) {
  auto const all = floats();
  constexpr std::size_t margin = 3;
  for (std::size_t shift = 0; shift < 9; ++shift) {
    for (std::size_t count : {0u, 1u, 3u, 7u, 8u, 9u, 31u, 64u, 65u, 1000u}) {
      float const* const from = all.data() + 263 * 14 * shift + shift;
      std::vector<Half> narrow(count + 2 * margin, Half(42.f));
      zero::kernel::convert(narrow.data() + margin, from, count);
      std::vector<float> wide(count + 2 * margin, 42.f);
      zero::kernel::convert(wide.data() + margin, narrow.data() + margin, count);
      std::vector<float> sum(count + 2 * margin, 0.75f);
      zero::kernel::add(sum.data() + margin, narrow.data() + margin, count);
      std::vector<Half> half_sum(count + 2 * margin, Half(0.75f));
      zero::kernel::add(half_sum.data() + margin, from, count);
      for (std::size_t i = 0; i < count; ++i) {
        REQUIRE(narrow[margin + i] == Half(from[i]));
        float const back = static_cast<float>(Half(from[i]));
        CHECK(std::bit_cast<std::uint32_t>(wide[margin + i]) == std::bit_cast<std::uint32_t>(back));
        if (back == back) {
          CHECK(sum[margin + i] == 0.75f + back);
          CHECK(half_sum[margin + i] == Half(0.75f + from[i]));
        }
      }
      for (std::size_t i = 0; i < margin; ++i) {
        CHECK(narrow[i] == Half(42.f));
        CHECK(narrow[margin + count + i] == Half(42.f));
        CHECK(wide[i] == 42.f);
        CHECK(wide[margin + count + i] == 42.f);
        CHECK(sum[i] == 0.75f);
        CHECK(sum[margin + count + i] == 0.75f);
      }
    }
  }
}

TEST_CASE("fp32 to fp32 is a copy") {
  std::vector<float> const from{1.f, -0.f, std::numeric_limits<float>::infinity(), 4.f, 5.f};
  std::vector<float> to(5);
  zero::kernel::convert(to.data(), from.data(), 5);
  CHECK(std::memcmp(to.data(), from.data(), 20) == 0);
}
