// Root codes as a device makes them, run on the host: those of the host's kernels.
#include "zero/device/root.hpp"

#include "support/random.hpp"
#include "support/test.hpp"
#include "zero/kernel/root_code.hpp"

namespace root_test {
namespace {

namespace device = zero::device;
namespace kernel = zero::kernel;
using kernel::OneLane;

float chance_of(std::uint32_t random) {
  return 2.f * (static_cast<float>(random) + 0.5f) * 0x1p-16f;
}

}  // namespace

TEST_CASE("device: bytes of words are numbers, and the lowest bytes of words are words") {
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    for (unsigned place = 0; place < 4; ++place) {
      std::uint32_t const word =
          0x80ff017fu ^ ((byte ^ (0x80ff017fu >> 8 * place & 0xff)) << 8 * place);
      CHECK(device::code_of_word<std::uint8_t>(word, place) == static_cast<float>(byte));
      CHECK(device::code_of_word<std::int8_t>(word, place) ==
            static_cast<float>(static_cast<std::int8_t>(byte)));
    }
  }
  CHECK(device::lowest_bytes({0x4b000001u, 0xffffff80u, 0x123u, 0x4b4000ffu}) == 0xff238001u);
  for (std::uint32_t const random : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0xffffu}) {
    CHECK(device::root_chance(random | 0xabcd0000u, 0) == chance_of(random));
    CHECK(device::root_chance(random << 16 | 0xabcdu, 1) == chance_of(random));
  }
}

TEST_CASE_TEMPLATE("device: numbers of codes are the host's, in groups of every scale",
                   Code,
                   std::int8_t,
                   std::uint8_t) {
  std::size_t differ = 0;
  for (int scale = 0; scale < 255; ++scale) {
    float const unit = kernel::root_unit<Code>(static_cast<std::uint8_t>(scale));
    for (int i = 0; i < 256; ++i) {
      auto const code = static_cast<Code>(i);
      float const expected = kernel::decode_root<Code>(OneLane::load(&code), unit);
      float const number = device::number_of_code<Code>(static_cast<float>(code), unit);
      if (OneLane::bits_of(number) != OneLane::bits_of(expected)) ++differ;
    }
  }
  CHECK(differ == 0);
}

TEST_CASE_TEMPLATE("device: root codes are the host's, in groups of every scale",
                   Code,
                   std::int8_t,
                   std::uint8_t) {
  using Grid = kernel::RootGrid<Code>;
  std::size_t differ = 0;
  for (int scale = 0; scale < 255; ++scale) {
    if (scale != 0 && (scale < Grid::least_scale || scale > Grid::most_scale)) continue;
    auto const s = static_cast<std::uint8_t>(scale);
    kernel::RootLevels<Code> const levels(s);
    device::RootEncoder<Code> const encode(s);
    for (std::size_t i = 0; i < 4000; ++i) {
      std::uint64_t const bits = mixed(static_cast<std::uint64_t>(scale), i);
      auto const random = static_cast<std::uint32_t>(i % 4 == 0   ? 0
                                                     : i % 4 == 1 ? 0xffff
                                                                  : bits >> 48);
      // Shares of the scale's power of two, all sizes of them, squares of codes among them.
      double share = std::ldexp(1. + static_cast<double>(bits & 0x7fffff) * 0x1p-23,
                                -1 - static_cast<int>((bits >> 24) % (i % 3 == 0 ? 8 : 160)));
      if (i % 5 == 0) {
        auto const c = static_cast<double>((bits >> 24) % (Grid::largest + 1u));
        share =
            c * c / double{Grid::square} * (1. + static_cast<double>(i % 3) * 0x1p-24 - 0x1p-24);
      }
      if (i == 7) share = 2.;
      double const magnitude = std::ldexp(share, scale - 127);
      auto x = static_cast<float>(Grid::has_sign ? magnitude : magnitude * magnitude);
      if (scale == 0) x = 0.f;
      if (!std::isfinite(x)) continue;
      if (Grid::has_sign && (bits >> 40) % 2 != 0) x = -x;
      auto const expected = static_cast<Code>(kernel::encode_root<Code>(x, levels, random));
      if (static_cast<Code>(encode(x, chance_of(random))) != expected) ++differ;
    }
  }
  CHECK(differ == 0);
}

TEST_CASE_TEMPLATE("device: a root that is a little off has the same code",
                   Code,
                   std::int8_t,
                   std::uint8_t) {
  using Grid = kernel::RootGrid<Code>;
  constexpr auto most = static_cast<float>(Grid::largest);
  std::size_t differ = 0;
  for (std::size_t i = 0; i < 1'000'000; ++i) {
    std::uint64_t const bits = mixed(3, i);
    std::uint32_t const random = i % 8 == 0   ? 0
                                 : i % 8 == 1 ? 0xffff
                                              : static_cast<std::uint32_t>(bits >> 48);
    float share = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
    if (i % 3 == 0) share *= share;
    if (i % 7 == 0) {
      auto const c = static_cast<float>((bits >> 24) % (Grid::largest + 1u));
      share = c * c / Grid::square;
    }
    // Means of squares have a least code, which is not decided here.
    float const level = share * Grid::square;
    auto const n = static_cast<std::uint32_t>(std::sqrt(level));
    auto const number = static_cast<float>(n);
    float const u = (static_cast<float>(random) + 0.5f) * 0x1p-16f;
    std::uint32_t const code = n + (u * (2.f * number + 1.f) < level - number * number ? 1u : 0u);
    for (float const off : {-0.04f, -0.0001f, 0.f, 0.0001f, 0.04f}) {
      float const root = std::sqrt(share) + off / most;
      auto const at = device::root_or_below<Code>(share, root, chance_of(random));
      if (static_cast<std::uint32_t>(at.lower) + (at.raised ? 1u : 0u) != code) ++differ;
    }
  }
  CHECK(differ == 0);
}

}  // namespace root_test
