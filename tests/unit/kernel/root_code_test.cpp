#include "zero/kernel/root_code.hpp"

#include "support/random.hpp"
#include "support/test.hpp"

namespace root_code_test {
namespace {

namespace kernel = zero::kernel;
using kernel::OneLane;
using kernel::RootLevels;
using Signed = std::int8_t;
using Unsigned = std::uint8_t;

std::uint32_t word(float x) { return std::bit_cast<std::uint32_t>(x); }
float number(std::uint32_t bits) { return std::bit_cast<float>(bits); }

template <class Code>
std::uint8_t scale_of(std::vector<std::uint32_t> const& words) {
  std::uint32_t top = 0;
  for (std::uint32_t const w : words) top = std::max(top, w & 0x7fffffffu);
  return kernel::root_scale<Code>(top);
}
template <class Code>
Code nearest(std::uint32_t x, std::uint8_t scale) {
  return static_cast<Code>(
      kernel::encode_root_to_nearest<Code>(number(x), RootLevels<Code>(scale)));
}
template <class Code>
Code rounded(std::uint32_t x, std::uint8_t scale, std::uint32_t random) {
  return static_cast<Code>(kernel::encode_root<Code>(number(x), RootLevels<Code>(scale), random));
}
template <class Code>
std::uint32_t decoded(Code code, std::uint8_t scale) {
  return word(kernel::decode_root<Code>(OneLane::load(&code), kernel::root_unit<Code>(scale)));
}

/// A number of a group: what it is, to nearest and decoded, and stochastically with the least, the
/// middle and the most of 16 random bits.
struct Row {
  std::uint32_t word;
  int nearest;
  std::uint32_t decoded;
  int least, middle, most;
};

template <class Code>
void check_group(std::uint8_t scale, std::vector<Row> const& rows) {
  std::vector<std::uint32_t> words;
  for (Row const& row : rows) words.push_back(row.word);
  REQUIRE(int{scale_of<Code>(words)} == int{scale});
  for (Row const& row : rows) {
    CAPTURE(row.word);
    CHECK(int{nearest<Code>(row.word, scale)} == row.nearest);
    CHECK(decoded<Code>(static_cast<Code>(row.nearest), scale) == row.decoded);
    CHECK(int{rounded<Code>(row.word, scale, 0x0000)} == row.least);
    CHECK(int{rounded<Code>(row.word, scale, 0x8000)} == row.middle);
    CHECK(int{rounded<Code>(row.word, scale, 0xffff)} == row.most);
  }
}

/// Scales of groups whose numbers are finite and not all zero.
template <class Code>
std::vector<std::uint8_t> scales() {
  using Grid = kernel::RootGrid<Code>;
  std::vector<std::uint8_t> result;
  for (int s = Grid::least_scale; s <= Grid::most_scale; ++s) {
    result.push_back(static_cast<std::uint8_t>(s));
  }
  return result;
}

/// Codes of numbers, from the least to the largest.
template <class Code>
std::vector<Code> codes() {
  std::vector<Code> result;
  for (int c = std::is_signed_v<Code> ? -127 : 0; c <= (std::is_signed_v<Code> ? 127 : 255); ++c) {
    if (std::is_signed_v<Code> || c == 0 || c >= 4) result.push_back(static_cast<Code>(c));
  }
  return result;
}

}  // namespace

TEST_CASE("root codes: groups of means of gradients, from an independent program") {
  check_group<Signed>(0x7f,
                      {{0x3f800000, 127, 0x3f800000, 127, 127, 127},
                       {0xbf000000, -90, 0xbf00903f, -90, -90, -89},
                       {0x3e800000, 64, 0x3e820610, 64, 63, 63},
                       {0x3a83126f, 4, 0x3a820610, 5, 4, 4},
                       {0xb7fba882, -1, 0xb8820610, -1, 0, 0},
                       {0x3f333333, 106, 0x3f325691, 107, 106, 106}});
  check_group<Signed>(0x80,
                      {{0x3f800001, 90, 0x3f80903f, 90, 90, 89},
                       {0x3e4ccccd, 40, 0x3e4b2979, 41, 40, 40},
                       {0x38d1b717, 1, 0x39020610, 1, 1, 0}});
  // Scales end where numbers on the way would be subnormal or infinite.
  check_group<Signed>(0x0f, {{0x03800000, 8, 0x03820610, 8, 8, 7}, {0x80000001, 0, 0, 0, 0, 0}});
  check_group<Signed>(
      0xfe,
      {{0x7f7fffff, 127, 0x7f000000, 127, 127, 127}, {0xfe967699, -97, 0xfe955707, -98, -97, -97}});
  check_group<Signed>(0x00, {{0, 0, 0, 0, 0, 0}, {0x80000000, 0, 0, 0, 0, 0}});
}

TEST_CASE("root codes: groups of means of squares, from an independent program") {
  check_group<Unsigned>(0x7f,
                        {{0x3f800000, 255, 0x3f800000, 255, 255, 255},
                         {0x3e800000, 180, 0x3e7e3b3f, 181, 180, 180},
                         {0x3c23d70a, 81, 0x3c26cd1e, 81, 81, 80},
                         {0x38d1b717, 26, 0x38e2a752, 26, 25, 25},
                         {0x322bcc77, 4, 0x3382050a, 4, 4, 4},
                         {0x00000000, 0, 0x00000000, 0, 0, 0}});
  check_group<Unsigned>(0x71,
                        {{0x312bcc77, 231, 0x312c6560, 231, 231, 230},
                         {0x3089705f, 184, 0x308acc12, 184, 184, 183},
                         {0x2c8cbccc, 46, 0x2c8acc12, 47, 46, 46}});
  check_group<Unsigned>(0x4c, {{0x000116c2, 4, 0x0082050a, 4, 4, 4}});
}

TEST_CASE_TEMPLATE("root codes: a group with a number that is not finite is NaN",
                   Code,
                   Signed,
                   Unsigned) {
  for (std::uint32_t const bad : {0x7f800000u, 0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    std::uint8_t const scale = scale_of<Code>({0x3f800000, bad, 0});
    CHECK(int{scale} == 255);
    for (std::uint32_t const x : {0x3f800000u, bad, 0u, 1u}) {
      CHECK(int{nearest<Code>(x, scale)} == 0);
      for (std::uint32_t const h : {0u, 0x8000u, 0xffffu}) {
        CHECK(int{rounded<Code>(x, scale, h)} == 0);
      }
    }
    CHECK((decoded<Code>(0, scale) & 0x7fffffffu) > 0x7f800000u);
  }
}

TEST_CASE_TEMPLATE("root codes: which codes and scales there are", Code, Signed, Unsigned) {
  constexpr bool has_sign = std::is_signed_v<Code>;
  for (int s = 0; s <= 255; ++s) {
    bool const of_numbers = has_sign ? s >= 15 && s <= 254 : s >= 76 && s <= 190;
    for (int c = has_sign ? -128 : 0; c <= (has_sign ? 127 : 255); ++c) {
      bool const code = has_sign ? c != -128 : c == 0 || c >= 4;
      bool const expected = s == 0 || s == 255 ? c == 0 : of_numbers && code;
      REQUIRE(kernel::is_root(static_cast<Code>(c), static_cast<std::uint8_t>(s)) == expected);
    }
  }
}

TEST_CASE_TEMPLATE("root codes: decoded numbers rise with their codes, for every scale",
                   Code,
                   Signed,
                   Unsigned) {
  for (std::uint8_t const scale : scales<Code>()) {
    float before = -std::numeric_limits<float>::infinity();
    for (Code const code : codes<Code>()) {
      float const value = number(decoded<Code>(code, scale));
      REQUIRE(value > before);
      before = value;
    }
    // The largest is a power of two: of the number, or of its root.
    int const power = int{scale} - 127;
    REQUIRE(before == std::ldexp(1.f, std::is_signed_v<Code> ? power : 2 * power));
  }
  for (Code const code : codes<Code>()) {
    if (code == 0) CHECK(decoded<Code>(code, 0) == 0);
  }
}

TEST_CASE_TEMPLATE("root codes: a decoded number gets its code back, however it is rounded",
                   Code,
                   Signed,
                   Unsigned) {
  // One step below, the group would have the next smaller scale.
  constexpr int least_top = std::is_signed_v<Code> ? 90 : 181;
  for (std::uint8_t const scale : scales<Code>()) {
    for (Code const code : codes<Code>()) {
      std::uint32_t const x = decoded<Code>(code, scale);
      bool right = nearest<Code>(x, scale) == code;
      for (std::uint32_t const h : {0u, 1u, 0x7fffu, 0x8000u, 0xfffeu, 0xffffu}) {
        right = right && rounded<Code>(x, scale, h) == code;
      }
      if (std::abs(int{code}) >= least_top) right = right && scale_of<Code>({x}) == scale;
      REQUIRE_MESSAGE(right, int{code}, " of scale ", int{scale});
    }
  }
}

TEST_CASE_TEMPLATE("root codes: the mean over all random bits is what is coded",
                   Code,
                   Signed,
                   Unsigned) {
  constexpr double square = std::is_signed_v<Code> ? 127. * 127. : 255. * 255.;
  for (std::uint64_t trial = 0; trial < 12; ++trial) {
    // Between code 4, below which there are no others, and the largest.
    double const least = 16. / square;
    double const drawn = static_cast<double>(mixed(trial) >> 11) * 0x1p-53;
    auto const level = least + (1. - least) * drawn * drawn;
    auto const x = static_cast<float>(std::is_signed_v<Code> ? level : level * level);
    double const exact =
        square * (std::is_signed_v<Code> ? double{x} : std::sqrt(static_cast<double>(x)));
    double sum = 0.;
    for (std::uint32_t h = 0; h <= 0xffff; ++h) {
      double const code = rounded<Code>(word(x), 127, h);
      sum += code * code;
    }
    // A chance is a multiple of 2^-16 of the distance of two squares, at most 509; and the level
    // has the precision of a float.
    CHECK(std::abs(sum / 65536. - exact) <= 512. / 65536. + exact * 0x1p-22);
  }
}

TEST_CASE("root codes: a mean of squares that is not zero never becomes zero") {
  for (std::uint8_t const scale : scales<Unsigned>()) {
    for (std::uint32_t const x : {1u, 0x00800000u, 0x10000000u}) {
      REQUIRE(nearest<Unsigned>(x, scale) >= 4);
      for (std::uint32_t const h : {0u, 0x8000u, 0xffffu}) {
        REQUIRE(rounded<Unsigned>(x, scale, h) >= 4);
      }
    }
    REQUIRE(nearest<Unsigned>(0, scale) == 0);
    REQUIRE(rounded<Unsigned>(0, scale, 0) == 0);
  }
}

}  // namespace root_code_test
