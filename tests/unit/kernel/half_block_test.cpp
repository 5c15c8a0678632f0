#include "zero/kernel/half_block.hpp"

#include "unit/kernel/interesting_floats.hpp"
#include "zero/base/dtype.hpp"
#include "zero/kernel/isa.hpp"

#include <doctest/doctest.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace half_block_test {
namespace {

using zero::fp16;
using zero::kernel::native;
using zero::kernel::detail::HalfBlocks;
using zero::kernel::detail::in_half_blocks;

template <zero::kernel::Isa I>
void check_every_half() {
  if constexpr (in_half_blocks<I, fp16>) {
    if (!HalfBlocks<I>::usable()) {
      MESSAGE("not tested: this processor has no AVX2");
      return;
    }
    std::vector<fp16> halves;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      halves.push_back(fp16::from_bits(static_cast<std::uint16_t>(bits)));
    }
    std::vector<float> wide(halves.size());
    HalfBlocks<I>::widen(wide.data(), halves.data(), halves.size());
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      auto const expected = std::bit_cast<std::uint32_t>(static_cast<float>(halves[i]));
      if (std::bit_cast<std::uint32_t>(wide[i]) != expected) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

template <zero::kernel::Isa I>
void check_floats(std::vector<float> const& floats) {
  if constexpr (in_half_blocks<I, fp16>) {
    if (!HalfBlocks<I>::usable()) {
      MESSAGE("not tested: this processor has no AVX2");
      return;
    }
    for (bool const stream : {false, true}) {
      // Room to start at an aligned element.
      std::vector<fp16> room(floats.size() + 8);
      auto const address = reinterpret_cast<std::uintptr_t>(room.data());
      fp16* const halves = room.data() + (16 - address % 16) % 16 / sizeof(fp16);
      HalfBlocks<I>::narrow(halves, floats.data(), floats.size(), stream);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < floats.size(); ++i) {
        if (halves[i] != static_cast<fp16>(floats[i])) ++wrong;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("every fp16 is widened to the bits of base/float16.hpp") { check_every_half<native>(); }

TEST_CASE("floats around every tie are narrowed to the bits of base/float16.hpp") {
  check_floats<native>(interesting_floats());
}

}  // namespace
}  // namespace half_block_test
