#include "zero/kernel/rounded.hpp"

#include "support/test.hpp"
#include "zero/base/float16.hpp"

#include <cstdint>
#include <limits>
#include <vector>

namespace rounded_test {
namespace {

constexpr std::uint64_t none = ~std::uint64_t{0};

template <class P, class M>
std::uint64_t first_of(std::vector<P> const& parameters,
                       std::vector<M> const& masters,
                       std::uint64_t place = 0,
                       std::uint64_t before = none) {
  zero::kernel::find_unrounded(
      &before, parameters.data(), masters.data(), parameters.size(), place);
  return before;
}

TEST_CASE_TEMPLATE("find_unrounded: the least place counts, wherever it is",
                   P,
                   zero::bf16,
                   zero::fp16) {
  for (std::size_t const count : {1u, 511u, 512u, 513u, 1700u}) {
    std::vector<float> masters;
    std::vector<P> parameters;
    for (std::size_t i = 0; i < count; ++i) {
      masters.push_back(static_cast<float>(i) / 7.f - 90.f);
      parameters.push_back(P(masters.back()));
    }
    CHECK(first_of(parameters, masters) == none);
    for (std::size_t i = 0; i < count; i += i < 520 ? 1 : 97) {
      auto other = parameters;
      other[i] = P::from_bits(static_cast<std::uint16_t>(other[i].bits ^ 1u));
      other.back() = P::from_bits(static_cast<std::uint16_t>(other.back().bits ^ 0x8000u));
      REQUIRE(first_of(other, masters, 1000) == 1000 + i);
      REQUIRE(first_of(other, masters, 1000, 999) == 999);
    }
  }
}

TEST_CASE_TEMPLATE("is_rounded: bits count, the sign of a zero too, but for which NaN it is",
                   P,
                   zero::bf16,
                   zero::fp16) {
  // Each pattern is its own value rounded, and a pattern that is no NaN that of no other.
  for (std::uint32_t bits = 0; bits <= 0xffffu; ++bits) {
    P const one = P::from_bits(static_cast<std::uint16_t>(bits));
    auto const value = static_cast<float>(one);
    REQUIRE(zero::kernel::is_rounded(one, value));
    for (std::uint32_t const flipped : {1u, 0x40u, 0x8000u}) {
      P const other = P::from_bits(static_cast<std::uint16_t>(bits ^ flipped));
      bool const both_nan =
          value != value && static_cast<float>(other) != static_cast<float>(other);
      REQUIRE(zero::kernel::is_rounded(other, value) == both_nan);
    }
  }
  // Ties go to even.
  CHECK(zero::kernel::is_rounded(P(1.f), 1.f + 0x1p-12f));
  CHECK(zero::kernel::is_rounded(P(std::numeric_limits<float>::infinity()), 3.4e38f) ==
        (static_cast<float>(P(3.4e38f)) == std::numeric_limits<float>::infinity()));
}

TEST_CASE("is_rounded: masters of doubles are rounded once") {
  CHECK(zero::kernel::is_rounded(0.1f, 0.1));
  CHECK_FALSE(zero::kernel::is_rounded(0.1f, 0.10000001));
  // Beside the middle between two of bf16, by less than a float has.
  CHECK(zero::kernel::is_rounded(zero::bf16(1.0078125f), 1.00390625 + 0x1p-40));
  CHECK(zero::kernel::is_rounded(zero::bf16(1.f), 1.00390625 - 0x1p-40));
}

}  // namespace
}  // namespace rounded_test
