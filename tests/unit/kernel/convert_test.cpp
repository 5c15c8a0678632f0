#include "interesting_floats.hpp"
#include <zero/kernel/convert.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace convert_test {
namespace {

using zero::bf16;
using zero::fp16;

}  // namespace

TEST_CASE_TEMPLATE("convert and add are the scalar expressions at any offset and count",
                   Half,
                   bf16,
                   fp16) {
  auto const all = interesting_floats();
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

}  // namespace convert_test
