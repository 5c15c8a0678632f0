#include "interesting_floats.hpp"
#include <zero/kernel/pack.hpp>
#include <zero/kernel/plain_pack.hpp>
#include <zero/kernel/vector_pack.hpp>

#include <doctest/doctest.h>

#include <bit>
#include <cstdint>
#include <type_traits>

namespace vector_pack_test {
namespace {

using zero::bf16;
using zero::fp16;

/// The vectors of this unit's flags, and those for a processor nothing is known about.
using Native = zero::kernel::VectorPack<zero::kernel::native>;
using Generic = zero::kernel::VectorPack<zero::kernel::isa::generic>;
/// Those for a compiler without vectors.
using Plain = zero::kernel::PlainPack<zero::kernel::isa::plain>;

template <class Half>
float scalar(std::uint16_t bits) {
  return static_cast<float>(Half::from_bits(bits));
}

template <class V, class Half>
struct Conversion {
  using Vector = V;
  using Type = Half;
};

}  // namespace

TEST_CASE("a pack is of vectors where the compiler has them") {
  static_assert(std::is_same_v<zero::kernel::Pack<>, Native>);
  static_assert(sizeof(Native) == 4 * Native::lanes && sizeof(Plain) == 4 * Plain::lanes);
}

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
    auto const from = interesting_floats();
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

}  // namespace vector_pack_test
