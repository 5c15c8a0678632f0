/// Conversions of 16-bit floats have the bits of base/float16.hpp, in arrays, packs and blocks.
#include "support/test.hpp"
#include <zero/base/dtype.hpp>
#include <zero/kernel/convert.hpp>
#include <zero/kernel/half_block.hpp>
#include <zero/kernel/host_conversion.hpp>
#include <zero/kernel/isa.hpp>
#include <zero/kernel/pack.hpp>
#include <zero/kernel/plain_pack.hpp>
#include <zero/kernel/vector_pack.hpp>

namespace convert_test {
namespace {

using zero::bf16;
using zero::fp16;
using zero::kernel::native;
namespace isa = zero::kernel::isa;

/// Every float whose rounding to 16 bits is interesting: all upper halves, and lower halves at and
/// next to every tie.
std::vector<float> const& interesting_floats() {
  static auto const floats = [] {
    std::vector<float> result;
    for (std::uint32_t high = 0; high <= 0xffff; ++high) {
      for (std::uint32_t const tie :
           {0x0000u, 0x1000u, 0x2000u, 0x3000u, 0x8000u, 0xf000u, 0xffffu}) {
        for (std::uint32_t const low : {tie - 1, tie, tie + 1}) {
          if (low <= 0xffff) result.push_back(std::bit_cast<float>(high << 16 | low));
        }
      }
    }
    while (result.size() % 16 != 0) result.push_back(0.f);
    return result;
  }();
  return floats;
}

/// All 65536.
template <class Half>
std::vector<Half> every_half() {
  std::vector<Half> halves;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    halves.push_back(Half::from_bits(static_cast<std::uint16_t>(bits)));
  }
  return halves;
}

bool same_bits(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

/// The vectors of this unit's flags, those for a processor nothing is known about, and those for a
/// compiler without vectors.
using Native = zero::kernel::VectorPack<native>;
using Generic = zero::kernel::VectorPack<isa::generic>;
using Plain = zero::kernel::PlainPack<isa::plain, float>;
static_assert(std::is_same_v<zero::kernel::Pack<>, Native>);
static_assert(sizeof(Native) == 4 * Native::lanes && sizeof(Plain) == 4 * Plain::lanes);

// One assertion for all elements: doctest takes its time over a million.
template <class V, class Half>
void check_pack() {
  bool same = true;
  // Also signalling NaNs, among numbers and alone in their vector.
  auto const halves = every_half<Half>();
  for (std::size_t first = 0; first < halves.size(); first += V::lanes) {
    float wide[V::lanes];
    V::load(halves.data() + first).store(&wide[0]);
    for (std::size_t i = 0; i < V::lanes; ++i) {
      same = same && same_bits(wide[i], static_cast<float>(halves[first + i]));
    }
  }
  CHECK(same);
  auto const& from = interesting_floats();
  for (std::size_t first = 0; first < from.size(); first += 2 * V::lanes) {
    Half narrow[2 * V::lanes];
    alignas(16) Half streamed[2 * V::lanes];
    V const low = V::load(from.data() + first);
    V const high = V::load(from.data() + first + V::lanes);
    low.store(&narrow[0]);
    high.store(&narrow[V::lanes]);
    V::stream(low, high, &streamed[0]);
    V::fence();
    for (std::size_t i = 0; i < 2 * V::lanes; ++i) {
      same = same && narrow[i] == Half(from[first + i]) && streamed[i] == narrow[i];
    }
  }
  CHECK(same);
}

template <zero::kernel::Isa I>
void check_blocks() {
  using zero::kernel::detail::HalfBlocks;
  if constexpr (zero::kernel::detail::in_half_blocks<I, fp16>) {
    if (!HalfBlocks<I>::usable()) {
      MESSAGE("not tested: this processor has no AVX2");
      return;
    }
    auto const halves = every_half<fp16>();
    std::vector<float> wide(halves.size());
    HalfBlocks<I>::widen(wide.data(), halves.data(), halves.size());
    bool same = true;
    for (std::size_t i = 0; i < halves.size(); ++i) {
      same = same && same_bits(wide[i], static_cast<float>(halves[i]));
    }
    CHECK(same);
    auto const& floats = interesting_floats();
    for (bool const stream : {false, true}) {
      // Room to start at an aligned element.
      std::vector<fp16> room(floats.size() + 8);
      auto const address = reinterpret_cast<std::uintptr_t>(room.data());
      fp16* const narrow = room.data() + (16 - address % 16) % 16 / sizeof(fp16);
      HalfBlocks<I>::narrow(narrow, floats.data(), floats.size(), stream);
      for (std::size_t i = 0; i < floats.size(); ++i) same = same && narrow[i] == fp16(floats[i]);
      CHECK(same);
    }
  }
}

}  // namespace

TEST_CASE("packs and blocks convert every half, and floats around every tie") {
  check_pack<Native, bf16>();
  check_pack<Native, fp16>();
  check_pack<Generic, bf16>();
  check_pack<Generic, fp16>();
  check_pack<Plain, bf16>();
  check_pack<Plain, fp16>();
  check_blocks<native>();
}

TEST_CASE_TEMPLATE("convert and add are the scalar expressions at any offset and count",
                   Half,
                   bf16,
                   fp16) {
  constexpr std::size_t margin = 3;
  for (std::size_t shift = 0; shift < 9; ++shift) {
    for (std::size_t const count : {0u, 1u, 3u, 7u, 8u, 9u, 31u, 64u, 65u, 1000u}) {
      float const* const from = interesting_floats().data() + 263 * 19 * shift + shift;
      std::vector<Half> narrow(count + 2 * margin, Half(42.f));
      zero::kernel::convert(narrow.data() + margin, from, count);
      std::vector<float> wide(count + 2 * margin, 42.f);
      zero::kernel::convert(wide.data() + margin, narrow.data() + margin, count);
      std::vector<float> sum(count + 2 * margin, 0.75f);
      zero::kernel::add(sum.data() + margin, narrow.data() + margin, count);
      std::vector<Half> half_sum(count + 2 * margin, Half(0.75f));
      zero::kernel::add(half_sum.data() + margin, from, count);
      bool right = true;
      for (std::size_t i = 0; i < narrow.size(); ++i) {
        bool const inside = i >= margin && i < margin + count;
        float const x = inside ? from[i - margin] : 42.f;
        float const back = static_cast<float>(Half(x));
        right = right && narrow[i] == Half(x) && same_bits(wide[i], back);
        if (back != back) continue;
        right = right && sum[i] == (inside ? 0.75f + back : 0.75f);
        right = right && half_sum[i] == Half(inside ? 0.75f + x : 0.75f);
      }
      CHECK_MESSAGE(right, count, " elements at +", shift);
    }
  }
}

TEST_CASE_TEMPLATE("doubles are rounded once, to any type", Half, bf16, fp16) {
  // A little above or below a tie of 16 bits: rounding to fp32 first would make it one.
  std::vector<double> from;
  for (float const near : {1.f, -3.f, 0x1p-10f, 100.f}) {
    for (int step = -40; step <= 40; ++step) {
      auto const at = static_cast<double>(near) * (1. + step * 0x1p-12);
      for (double const off : {-0x1p-40, 0., 0x1p-40}) from.push_back(at * (1. + off));
    }
  }
  from.push_back(-0.);
  std::size_t const count = from.size();
  std::vector<Half> narrow(count);
  std::vector<float> single(count);
  std::vector<double> back(count), sum(count, 0.5);
  zero::kernel::convert(narrow.data(), from.data(), count);
  zero::kernel::convert(single.data(), from.data(), count);
  zero::kernel::convert(back.data(), narrow.data(), count);
  zero::kernel::add(sum.data(), narrow.data(), count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    double const got = static_cast<double>(static_cast<float>(narrow[i]));
    // The nearest: neither neighbour is nearer.
    for (int const next : {-1, 1}) {
      auto const bits = static_cast<std::uint16_t>(narrow[i].bits + next);
      double const other = static_cast<double>(static_cast<float>(Half::from_bits(bits)));
      if (std::abs(other - from[i]) < std::abs(got - from[i])) ++wrong;
    }
    if (single[i] != static_cast<float>(from[i]) || back[i] != got || sum[i] != 0.5 + got) ++wrong;
  }
  CHECK(wrong == 0);
  // The same where types are known at run time, at any address.
  std::vector<std::byte> bytes(1 + count * sizeof(Half));
  zero::kernel::convert_on_host(
      zero::dtype_of<Half>, bytes.data() + 1, zero::DType::f64, from.data(), count);
  CHECK(std::memcmp(bytes.data() + 1, narrow.data(), count * sizeof(Half)) == 0);
  zero::kernel::convert_on_host(
      zero::DType::f64, back.data(), zero::dtype_of<Half>, bytes.data() + 1, count);
  CHECK(static_cast<float>(narrow[0]) == back[0]);
  double const huge = 1e300;
  zero::kernel::convert(narrow.data(), &huge, 1);
  CHECK(static_cast<float>(narrow[0]) == std::numeric_limits<float>::infinity());
}

TEST_CASE("fp32 to fp32 is a copy") {
  std::vector<float> const from{1.f, -0.f, std::numeric_limits<float>::infinity(), 4.f, 5.f};
  std::vector<float> to(5);
  zero::kernel::convert(to.data(), from.data(), 5);
  CHECK(std::memcmp(to.data(), from.data(), 20) == 0);
}

TEST_CASE("the number of lanes and the instruction sets do not overlap, and are this unit's") {
  for (zero::kernel::Isa const bit : {isa::sse2, isa::avx, isa::fma, isa::f16c}) {
    CHECK((bit & isa::lanes_mask) == 0);
    CHECK((bit & (bit - 1)) == 0);
  }
  CHECK(isa::plain != isa::generic);
  CHECK((isa::plain & isa::lanes_mask) == (isa::generic & isa::lanes_mask));
  static_assert((native & isa::lanes_mask) == ((native & isa::avx) != 0 ? 8 : 4));
#if defined(__SSE2__)
  CHECK((native & isa::sse2) != 0);
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  CHECK((native & isa::fma) != 0);
#else
  CHECK((native & isa::fma) == 0);
#endif
}

}  // namespace convert_test
