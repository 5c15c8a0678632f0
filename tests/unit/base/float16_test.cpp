#include "support/test.hpp"
#include <zero/base/float16.hpp>

namespace float16_test {
namespace {

using zero::bf16;
using zero::fp16;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Sign, exponent and mantissa taken apart by hand: the value of a pattern from the definition.
double value_of(std::uint32_t bits, int exponent_bits, int mantissa_bits) {
  std::uint32_t const mantissa = bits & ((1u << mantissa_bits) - 1);
  std::uint32_t const exponent = (bits >> mantissa_bits) & ((1u << exponent_bits) - 1);
  int const bias = (1 << (exponent_bits - 1)) - 1;
  double const sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1. : 1.;
  if (exponent == (1u << exponent_bits) - 1) {
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  double const fraction = static_cast<double>(mantissa) / (1 << mantissa_bits);
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias);
  return sign * std::ldexp(1. + fraction, static_cast<int>(exponent) - bias);
}

template <class Half>
struct Format;
template <>
struct Format<bf16> {
  static constexpr int exponent_bits = 8;
  static constexpr int mantissa_bits = 7;
  static constexpr std::uint16_t largest = 0x7f7f;
};
template <>
struct Format<fp16> {
  static constexpr int exponent_bits = 5;
  static constexpr int mantissa_bits = 10;
  static constexpr std::uint16_t largest = 0x7bff;
};

template <class Half>
double value_of(std::uint16_t bits) {
  return value_of(bits, Format<Half>::exponent_bits, Format<Half>::mantissa_bits);
}

}  // namespace

TEST_CASE_TEMPLATE("every pattern has its value and survives the way there and back",
                   Half,
                   bf16,
                   fp16) {
  int wrong = 0;
  for (std::uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    auto const bits = static_cast<std::uint16_t>(pattern);
    auto const wide = static_cast<float>(Half::from_bits(bits));
    double const expected = value_of<Half>(bits);
    bool right = std::isnan(expected)
                     ? std::isnan(wide) && std::isnan(static_cast<float>(Half(wide)))
                     : static_cast<double>(wide) == expected && Half(wide).bits == bits;
    right = right && std::signbit(wide) == ((bits >> 15) != 0);
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("between two neighbours: to the nearer, a tie to the even one",
                   Half,
                   bf16,
                   fp16) {
  int wrong = 0;
  for (std::uint32_t pattern = 0; pattern < Format<Half>::largest; ++pattern) {
    auto const low = static_cast<std::uint16_t>(pattern);
    auto const high = static_cast<std::uint16_t>(pattern + 1);
    double const middle = (value_of<Half>(low) + value_of<Half>(high)) / 2;
    auto const tie = static_cast<float>(middle);
    if (static_cast<double>(tie) != middle) continue;  // bf16: below fp32's own subnormals
    std::uint16_t const even = low % 2 == 0 ? low : high;
    for (float sign : {1.f, -1.f}) {
      std::uint16_t const top = sign < 0 ? 0x8000 : 0;
      wrong += Half(sign * tie).bits == (even | top) ? 0 : 1;
      wrong += Half(sign * std::nextafter(tie, 0.f)).bits == (low | top) ? 0 : 1;
      wrong += Half(sign * std::nextafter(tie, infinity)).bits == (high | top) ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("beyond the largest number and below the smallest, to infinity and to zero") {
  struct Row {
    float value;
    std::uint16_t bits;
  };
  constexpr float most = std::numeric_limits<float>::max();
  // Half a unit beyond fp16's largest number is a tie: to even, as at 2^-25, below its smallest.
  for (Row const& row : {Row{65504.f, 0x7bff},
                         Row{65519.99609375f, 0x7bff},
                         Row{65520.f, 0x7c00},
                         Row{65536.f, 0x7c00},
                         Row{65600.f, 0x7c00},
                         Row{70000.f, 0x7c00},
                         Row{131071.f, 0x7c00},
                         Row{1e6f, 0x7c00},
                         Row{most, 0x7c00},
                         Row{infinity, 0x7c00},
                         Row{0x1p-24f, 0x0001},
                         Row{0x1p-25f, 0x0000},
                         Row{0x1.000002p-25f, 1},
                         Row{0x1.8p-24f, 0x0002},
                         Row{0x1p-26f, 0x0000},
                         Row{0x1.ffcp-15f, 0x0400},
                         Row{std::numeric_limits<float>::denorm_min(), 0x0000}}) {
    CHECK(fp16(row.value).bits == row.bits);
    CHECK(fp16(-row.value).bits == (row.bits | 0x8000));
  }
  // bf16 keeps fp32's subnormals.
  for (auto const& [pattern, bits] : {std::pair{std::bit_cast<std::uint32_t>(most), 0x7f80},
                                      std::pair{0x7f7f7fffu, 0x7f7f},
                                      std::pair{0x7f7f8000u, 0x7f80},  // the tie: to even
                                      std::pair{0x7f800000u, 0x7f80},
                                      std::pair{0x00018000u, 0x0002},
                                      std::pair{0x00008000u, 0x0000}}) {
    CHECK(bf16(std::bit_cast<float>(pattern)).bits == bits);
    CHECK(bf16(std::bit_cast<float>(pattern | 0x80000000u)).bits == (bits | 0x8000));
  }
}

TEST_CASE_TEMPLATE("a NaN stays a NaN with its sign, also one with all bits set",
                   Half,
                   bf16,
                   fp16) {
  for (std::uint32_t bits :
       {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xffc00000u, 0xff800001u, 0xffffffffu}) {
    Half const half(std::bit_cast<float>(bits));
    auto const back = static_cast<float>(half);
    CHECK(std::isnan(back));
    CHECK((half.bits >> 15) == (bits >> 31));
    // Quiet: signalling NaNs trap where they are least expected.
    CHECK((std::bit_cast<std::uint32_t>(back) & 0x400000u) != 0);
  }
}

TEST_CASE_TEMPLATE("adding in place adds in float and rounds the sum once", Half, bf16, fp16) {
  float const gap = std::ldexp(1.f, -Format<Half>::mantissa_bits);
  std::array gradients{Half(1.f), Half(-2.f)};
  gradients[0] += 0.75f * gap;
  gradients[1] += 1e-30f;
  CHECK(static_cast<float>(gradients[0]) == 1.f + gap);
  CHECK(gradients[1] == Half(-2.f));
  (gradients[1] += 1.f) += 1.f;
  CHECK(gradients[1] == Half(0.f));
  static_assert([] {
    Half sum(1.f);
    sum += 2.f;
    return sum == Half(3.f);
  }());
}

TEST_CASE_TEMPLATE("equality is of representations", Half, bf16, fp16) {
  CHECK(Half(0.f) != Half(-0.f));
  auto const nan = Half(std::numeric_limits<float>::quiet_NaN());
  CHECK(nan == nan);
  CHECK(Half().bits == 0);
  CHECK(Half::from_bits(0x1234).bits == 0x1234);
  static_assert(sizeof(Half) == 2 && std::is_trivially_copyable_v<Half>);
  static_assert(!std::is_convertible_v<float, Half> && !std::is_convertible_v<Half, float>);
  static_assert(static_cast<float>(Half(1.5f)) == 1.5f);
}

}  // namespace float16_test
