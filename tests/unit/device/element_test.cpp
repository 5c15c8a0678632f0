// What a device computes per element, run on the host: the same source, and the same bits as the
// host's kernels.
#include "zero/device/element.hpp"

#include "support/test.hpp"
#include "zero/base/dtype.hpp"
#include "zero/concepts/space.hpp"
#include "zero/device/real.hpp"
#include "zero/device/vector.hpp"
#include "zero/kernel/reduce.hpp"
#include "zero/kernel/update.hpp"
#include "zero/rule/adagrad.hpp"
#include "zero/rule/adam.hpp"
#include "zero/rule/adamw.hpp"
#include "zero/rule/lion.hpp"
#include "zero/rule/sgd.hpp"

namespace element_test {
namespace {

namespace device = zero::device;
using Real = device::Real<float>;

constexpr std::size_t count = 4096 + 3;

/// Numbers of all magnitudes.
template <class T>
std::vector<T> numbers(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> result(count);
  for (T& element : result) {
    float const mantissa = static_cast<float>(random() >> 8) / 16777216.f - 0.5f;
    element = static_cast<T>(std::ldexp(mantissa, static_cast<int>(random() % 24) - 16));
  }
  return result;
}

template <class T>
bool same(std::vector<T> const& a, std::vector<T> const& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

/// The distance of two floats in representable numbers.
std::uint32_t distance(float a, float b) {
  auto const ordered = [](float x) {
    auto const bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? std::int64_t{std::numeric_limits<std::int32_t>::min()} - bits
                    : std::int64_t{bits};
  };
  std::int64_t const gap = ordered(a) - ordered(b);
  return static_cast<std::uint32_t>(gap < 0 ? -gap : gap);
}

/// Steps of a rule, element by element as a device does, against a plain loop in the arithmetic
/// that a device has: one rounding per operation, and fused multiply-adds.
template <class P, class G, class R>
void check_rule(R const& rule, float master_tolerance) {
  constexpr std::size_t k = R::states.size();
  auto master = numbers<float>(1);
  auto expected_master = master;
  std::vector<P> parameter(count), expected_parameter(count);
  std::vector<std::vector<float>> state(k + 1, std::vector<float>(count));
  auto expected_state = state;
  for (long step = 1; step <= 3; ++step) {
    auto const gradient = numbers<G>(10 + static_cast<unsigned>(step));
    auto const scalars = rule.scalars(step, static_cast<float>(rule.lr), 0.5f, 1.f);
    for (std::size_t i = 0; i < count; ++i) {
      float element[k + 1] = {};
      for (std::size_t s = 0; s < k; ++s) element[s] = state[s][i];
      device::update_element(rule, scalars, 0.125f, master[i], parameter[i], gradient[i], element);
      for (std::size_t s = 0; s < k; ++s) state[s][i] = element[s];
    }
    zero::UpdateArrays<float, P, G, float, k> arrays{
        .master = expected_master.data(), .gradient = gradient.data(), .count = count};
    if constexpr (!std::is_same_v<P, float>) arrays.parameter = expected_parameter.data();
    for (std::size_t s = 0; s < k; ++s) arrays.state[s] = expected_state[s].data();
    zero::kernel::update(rule, scalars, 0.125f, arrays);
  }
  float worst = 0;
  for (std::size_t i = 0; i < count; ++i) {
    // A step may be as large as the rate, and the parameter pass through zero.
    float const scale = std::max(std::abs(expected_master[i]), 1e-2f);
    worst = std::max(worst, std::abs(master[i] - expected_master[i]) / scale);
    if constexpr (!std::is_same_v<P, float>) {
      REQUIRE(parameter[i] == static_cast<P>(master[i]));
    }
  }
#if defined(__FMA__)
  // The host fuses as the device does: no bit differs. Else it rounds twice where that does once.
  CHECK(same(master, expected_master));
  for (std::size_t s = 0; s < k; ++s) CHECK(same(state[s], expected_state[s]));
#endif
  CHECK(worst <= master_tolerance);
}

TEST_CASE("a device updates an element as the host does, but for fused multiply-adds") {
  constexpr float few_ulps = 8e-7f;
  check_rule<float, float>(zero::AdamW{}, few_ulps);
  check_rule<zero::bf16, zero::bf16>(zero::AdamW{}, few_ulps);
  check_rule<zero::fp16, zero::fp16>(zero::Adam{.weight_decay = 0.1f}, few_ulps);
  check_rule<float, float>(zero::Adagrad{}, few_ulps);
  check_rule<float, float>(zero::Sgd{.weight_decay = 0.1f, .nesterov = true}, few_ulps);
  check_rule<float, float>(zero::PlainSgd{.weight_decay = 0.1f}, few_ulps);
}

TEST_CASE("a Real rounds every operation once, and a multiply-add once") {
  for (float const a : numbers<float>(3)) {
    float const b = a * 3.7f + 1.f;
    float const c = b - 2.5f;
    REQUIRE(distance(static_cast<float>(Real(a) + b), a + b) == 0);
    REQUIRE(distance(static_cast<float>(a - Real(b)), a - b) == 0);
    REQUIRE(distance(static_cast<float>(Real(a) / b), a / b) == 0);
    float const product = static_cast<float>(Real(a) * b);
    REQUIRE(distance(product, static_cast<float>(static_cast<double>(a) * b)) == 0);
    float const fused = static_cast<float>(Real::mul_add(a, b, c));
    REQUIRE(distance(fused, std::fma(a, b, c)) == 0);
    REQUIRE(distance(static_cast<float>(Real::sqrt(std::abs(a))), std::sqrt(std::abs(a))) == 0);
    REQUIRE(static_cast<float>(zero::math::sign(Real(a))) == (a > 0 ? 1.f : a < 0 ? -1.f : a));
    REQUIRE(static_cast<float>(zero::math::max(Real(a), Real(b))) == std::max(a, b));
  }
  // A product that is contracted would round once: 1 + 2^-24 squared less 1 + 2^-23 is 2^-48.
  float const x = 1.f + 0x1p-12f;
  CHECK(static_cast<float>(Real(x) * x - (1.f + 0x1p-11f)) == 0.f);
  CHECK(static_cast<float>(Real::mul_add(x, x, -(1.f + 0x1p-11f))) == 0x1p-24f);
}

template <class T, class Acc, int Abreast>
void check_sums() {
  constexpr std::size_t width = 4;
  constexpr std::size_t vectors = 3;
  constexpr std::size_t elements = width * vectors;
  for (int ranks = 1; ranks <= 9; ++ranks) {
    CAPTURE(ranks);
    std::vector<std::vector<T>> all;
    std::vector<T const*> inputs;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<T> own;
      for (std::size_t i = 0; i < elements; ++i) {
        auto const number = static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 31);
        own.push_back(static_cast<T>(std::is_integral_v<T> ? number - 15 : (number - 15) / 3));
      }
      // Nothing but -0, -0 before 0, and a number that nothing changes.
      own[0] = static_cast<T>(-0.f);
      own[1] = static_cast<T>(rank == 0 ? -0.f : 0.f);
      own[2] = static_cast<T>(rank == 0 ? 3.f : -0.f);
      all.push_back(std::move(own));
    }
    for (auto const& own : all) inputs.push_back(own.data());
    std::vector<T> expected(elements);
    zero::kernel::sum_ranks<T, Acc>(expected.data(), inputs.data(), ranks, elements);
    device::Vector<T, width> results[vectors];
    int asked = 0;
    device::sum_vectors<Acc, Abreast>(
        [&](int rank, std::size_t k) {
          REQUIRE(rank < ranks);
          ++asked;
          device::Vector<T, width> vector;
          std::copy_n(inputs[static_cast<std::size_t>(rank)] + k * width, width, vector.values);
          return vector;
        },
        ranks,
        results);
    CHECK(asked == ranks * static_cast<int>(vectors));
    for (std::size_t i = 0; i < elements; ++i) {
      CHECK(std::memcmp(&results[i / width].values[i % width], &expected[i], sizeof(T)) == 0);
    }
  }
}

TEST_CASE("sums over ranks have the bits of the host, also of -0, however many are asked at once") {
  check_sums<float, float, 4>();
  check_sums<float, float, 1>();
  check_sums<float, double, 4>();
  check_sums<double, double, 4>();
  check_sums<zero::bf16, float, 4>();
  check_sums<zero::bf16, float, 1>();
  check_sums<zero::fp16, float, 4>();
  check_sums<std::int32_t, std::int32_t, 4>();
  check_sums<std::int64_t, std::int64_t, 4>();
}

}  // namespace
}  // namespace element_test
