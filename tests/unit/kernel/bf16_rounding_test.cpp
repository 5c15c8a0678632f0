#include "zero/kernel/bf16_rounding.hpp"

#include "support/random.hpp"
#include "support/test.hpp"

namespace bf16_rounding_test {
namespace {

namespace kernel = zero::kernel;

/// Words at which a mistake would show, and others; all of them with either sign.
std::vector<std::uint32_t> some_words(std::uint64_t others = 200) {
  std::vector<std::uint32_t> result{0,
                                    1,
                                    0x7fff,
                                    0x8000,
                                    0x8001,
                                    0x00007fff,
                                    0x007fffff,
                                    0x00800000,
                                    0x3f800000,
                                    0x3f808000,
                                    0x3f818000,
                                    0x3f817fff,
                                    0x7f7f7fff,
                                    0x7f7f8000,
                                    0x7f7fffff};
  for (std::uint64_t i = 0; i < others; ++i) {
    result.push_back(static_cast<std::uint32_t>(mixed(i) >> 32) % 0x7f800000u);
  }
  std::size_t const positive = result.size();
  for (std::size_t i = 0; i < positive; ++i) result.push_back(result[i] | 0x80000000u);
  return result;
}

/// A finite number of a word, or what would come behind the largest.
double value_of(std::uint32_t word) {
  std::uint32_t const magnitude = word & 0x7fffffffu;
  int const exponent = static_cast<int>(magnitude >> 23);
  std::uint32_t const mantissa = (magnitude & 0x7fffffu) | (exponent == 0 ? 0u : 0x800000u);
  double const value = std::ldexp(static_cast<double>(mantissa), std::max(exponent, 1) - 150);
  return word >> 31 != 0 ? -value : value;
}

}  // namespace

TEST_CASE("half away: the nearer of two numbers of bf16, or the larger one") {
  for (std::uint32_t const word : some_words()) {
    std::uint32_t const below = word >> 16;
    double const x = std::abs(value_of(word));
    double const down = x - std::abs(value_of(below << 16));
    double const up = std::abs(value_of((below + 1) << 16)) - x;
    CHECK(kernel::round_half_away(word) == (up <= down ? below + 1 : below));
  }
  CHECK(kernel::round_half_away(0x7f800000) == 0x7f80);
  CHECK(kernel::round_half_away(0xff800000) == 0xff80);
}

TEST_CASE("stochastic rounding: up in as many cases as units are cut off") {
  for (std::uint32_t const word : some_words(5)) {
    std::uint32_t const below = word >> 16;
    std::uint32_t up = 0;
    bool neighbours = true;
    for (std::uint32_t h = 0; h <= 0xffff; ++h) {
      std::uint32_t const rounded = kernel::round_stochastically(word, h);
      neighbours = neighbours && (rounded == below || rounded == below + 1);
      up += rounded - below;
    }
    REQUIRE(neighbours);
    REQUIRE(up == (word & 0xffffu));
  }
  for (std::uint32_t const h : {0u, 0x8000u, 0xffffu}) {
    CHECK(kernel::round_stochastically(0x7f800000, h) == 0x7f80);
    CHECK(kernel::round_stochastically(0xff800000, h) == 0xff80);
    for (std::uint32_t const nan : {0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
      CHECK(kernel::round_stochastically(nan, h) == 0x7fc0);
      CHECK(kernel::round_stochastically(nan | 0x80000000u, h) == 0xffc0);
    }
  }
}

TEST_CASE("stochastic rounding: arrays of every length have the bits of single elements") {
  auto const words = some_words();
  for (std::size_t count = 0; count < 70; ++count) {
    std::vector<float> in(count);
    std::vector<std::uint16_t> random(count);
    for (std::size_t i = 0; i < count; ++i) {
      // Few of many are no numbers, so that each place has one while others have none.
      std::uint32_t const nan = i % 2 != 0 ? 0x7f800001u : 0xffffffffu;
      in[i] =
          std::bit_cast<float>(i % 37 == count % 37 ? nan : words[mixed(count, i) % words.size()]);
      random[i] = static_cast<std::uint16_t>(mixed(i));
    }
    std::vector<zero::bf16> out(count + 1, zero::bf16(99.f)), of_others(count);
    kernel::round_stochastically(out.data(), in.data(), random.data(), count);
    kernel::round_stochastically<kernel::isa::generic>(
        of_others.data(), in.data(), random.data(), count);
    CHECK(out[count] == zero::bf16(99.f));
    for (std::size_t i = 0; i < count; ++i) {
      auto const bits = std::bit_cast<std::uint32_t>(in[i]);
      REQUIRE(out[i].bits == kernel::round_stochastically(bits, random[i]));
      REQUIRE(of_others[i] == out[i]);
    }
  }
}

}  // namespace bf16_rounding_test
