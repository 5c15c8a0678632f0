#include "support/test.hpp"
#include <zero/base/math.hpp>
#include <zero/kernel/pack.hpp>
#include <zero/kernel/plain_pack.hpp>

namespace {

namespace math = zero::math;
using Native = zero::kernel::Pack<zero::kernel::native>;
using Generic = zero::kernel::Pack<zero::kernel::isa::generic>;
using Plain = zero::kernel::PlainPack<zero::kernel::isa::plain, float>;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Every lane of a pack, or a float; fails unless the lanes agree.
float value(float x) { return x; }
template <class V>
float value(V const& pack) {
  for (std::size_t i = 1; i < V::lanes; ++i) {
    REQUIRE(std::bit_cast<std::uint32_t>(pack[i]) == std::bit_cast<std::uint32_t>(pack[0]));
  }
  return pack[0];
}

}  // namespace

#if defined(__x86_64__)
namespace {

/// What a host with a fused multiply-add does, whatever the rest of the program is compiled for.
__attribute__((target("fma"))) double sum_of_product(double a, double b, double c) {
  return math::sum(a * b, c);
}

}  // namespace

TEST_CASE("a sum in fp64 adds what a product was rounded to, where multiply-adds could be fused") {
  if (!__builtin_cpu_supports("fma")) return;
  // Not known to the compiler, which would round a constant as it is written.
  double const volatile x = 1 + 0x1p-27;
  CHECK(std::fma(x, x, -(1 + 0x1p-26)) == 0x1p-54);
  CHECK(sum_of_product(x, x, -(1 + 0x1p-26)) == 0.);
}
#endif

TEST_CASE_TEMPLATE(
    "functions of a rule, on floats and on packs", V, float, Native, Generic, Plain) {
  CHECK(value(math::sqrt(V(9.f))) == 3.f);
  CHECK(value(math::sqrt(V(2.f))) == std::sqrt(2.f));
  CHECK(std::isnan(value(math::sqrt(V(-1.f)))));
  CHECK(value(math::abs(V(-3.f))) == 3.f);
  CHECK(!std::signbit(value(math::abs(V(-0.f)))));
  CHECK(value(math::max(V(2.f), V(3.f))) == 3.f);
  CHECK(value(math::min(V(2.f), V(3.f))) == 2.f);
  CHECK(value(math::max(V(not_a_number), V(3.f))) == 3.f);
  CHECK(value(math::sign(V(-infinity))) == -1.f);
  CHECK(value(math::sign(V(1e-40f))) == 1.f);
  CHECK(value(math::sign(V(0.f))) == 0.f);
  CHECK(std::signbit(value(math::sign(V(-0.f)))));
  CHECK(std::isnan(value(math::sign(V(not_a_number)))));
  CHECK(value(math::select(V(1.f) < V(2.f), V(5.f), V(6.f))) == 5.f);
  CHECK(value(math::select(V(1.f) > V(2.f), 5.f, 6.f)) == 6.f);
  CHECK(value(math::mul_add(V(2.f), V(3.f), V(4.f))) == 10.f);
  CHECK(value(math::mul_add(2.f, V(3.f), 4.f)) == 10.f);
  CHECK(value(math::mul_add(2.f, 3.f, V(4.f))) == 10.f);
  CHECK(value(V(1.f) + 2.f) == 3.f);
  CHECK(value(2.f - V(1.f)) == 1.f);
  CHECK(value(2.f * V(3.f)) == 6.f);
  CHECK(value(V(3.f) / 2.f) == 1.5f);
  CHECK(value(-V(0.f)) == 0.f);
  CHECK(std::signbit(value(-V(0.f))));
  CHECK(std::signbit(value(V(-0.f))));
  V sum(1.f);
  sum += V(4.f);
  sum *= V(3.f);
  sum -= V(1.f);
  sum /= V(2.f);
  CHECK(value(sum) == 7.f);
}

TEST_CASE("a float and a pack agree on every bit of a multiply-add") {
  // 1 + 2⁻¹² squared has a bit that one rounding keeps and two lose.
  float const x = 1.f + 0x1p-12f;
  float const scalar = math::mul_add(x, x, -1.f);
  CHECK(value(math::mul_add(Native(x), x, -1.f)) == scalar);
  bool const fused = (zero::kernel::native & zero::kernel::isa::fma) != 0;
  CHECK(scalar == (fused ? 0x1p-11f + 0x1p-24f : 0x1p-11f));
}

TEST_CASE("lanes are independent") {
  float numbers[Native::lanes];
  float expected[Native::lanes];
  for (std::size_t i = 0; i < Native::lanes; ++i) {
    numbers[i] = static_cast<float>(i) - 1.5f;
    expected[i] = numbers[i] > 0.f ? std::sqrt(numbers[i]) : -1.f;
  }
  Native const pack = Native::load(&numbers[0]);
  Native const result = math::select(pack > 0.f, math::sqrt(pack), -1.f);
  for (std::size_t i = 0; i < Native::lanes; ++i) CHECK(result[i] == expected[i]);
}

TEST_CASE("types of mixed expressions") {
  static_assert(std::is_same_v<math::Common<float, float>, float>);
  static_assert(std::is_same_v<math::Common<float, Native>, Native>);
  static_assert(std::is_same_v<math::Common<Native, float, float>, Native>);
}
