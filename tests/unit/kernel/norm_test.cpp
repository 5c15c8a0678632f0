#include <zero/kernel/norm.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <random>
#include <vector>

namespace norm_test {
namespace {

template <class T>
std::vector<T> block() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-40, 12);
  std::vector<T> result;
  for (int i = 0; i < 512; ++i) result.push_back(T(std::ldexp(normal(random), exponent(random))));
  return result;
}

template <class T>
void reference(std::vector<T> const& x, double (&lanes)[8]) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    double const value = static_cast<double>(static_cast<float>(x[i]));
    lanes[i % 8] += value * value;
  }
}

bool same(double const (&a)[8], double const (&b)[8]) {
  return std::memcmp(&a[0], &b[0], sizeof(a)) == 0;
}

}  // namespace

TEST_CASE_TEMPLATE(
    "however a block is cut, the lanes end with the same bits", T, float, zero::bf16, zero::fp16) {
  auto const x = block<T>();
  double expected[8] = {};
  reference(x, expected);
  SUBCASE("whole") {
    double lanes[8] = {};
    zero::kernel::add_squares(x.data(), x.size(), 0, lanes);
    CHECK(same(lanes, expected));
  }
  SUBCASE("two calls, every cut") {
    for (std::size_t cut = 0; cut <= x.size(); ++cut) {
      double lanes[8] = {};
      zero::kernel::add_squares(x.data(), cut, 0, lanes);
      zero::kernel::add_squares(x.data() + cut, x.size() - cut, cut, lanes);
      CHECK(same(lanes, expected));
    }
  }
  SUBCASE("calls of one size") {
    for (std::size_t size = 1; size < 40; ++size) {
      double lanes[8] = {};
      for (std::size_t i = 0; i < x.size(); i += size) {
        zero::kernel::add_squares(x.data() + i, std::min(size, x.size() - i), i, lanes);
      }
      CHECK(same(lanes, expected));
    }
  }
  SUBCASE("any alignment") {
    for (std::size_t shift = 0; shift < 16; ++shift) {
      std::vector<T> moved(x.size() + shift);
      std::copy(x.begin(), x.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
      double lanes[8] = {};
      zero::kernel::add_squares(moved.data() + shift, x.size(), 0, lanes);
      CHECK(same(lanes, expected));
    }
  }
  SUBCASE("the position in the element space counts modulo the lanes only") {
    double lanes[8] = {};
    zero::kernel::add_squares(x.data(), x.size(), std::uint64_t{1} << 40, lanes);
    CHECK(same(lanes, expected));
  }
}

TEST_CASE("nothing is added for no elements") {
  double lanes[8] = {1., 2., 3., 4., 5., 6., 7., 8.};
  zero::kernel::add_squares(static_cast<float const*>(nullptr), 0, 5, lanes);
  CHECK(zero::kernel::sum_lanes(lanes) == 36.);
}

TEST_CASE("a value that is not finite makes the sum not finite, wherever it stands") {
  float const infinity = std::numeric_limits<float>::infinity();
  for (float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < 40; ++at) {
      std::vector<float> x(40, 1.f);
      x[at] = bad;
      double lanes[8] = {};
      zero::kernel::add_squares(x.data(), x.size(), 0, lanes);
      CHECK(!std::isfinite(zero::kernel::sum_lanes(lanes)));
    }
  }
}

TEST_CASE("the largest floats do not overflow") {
  std::vector<float> const x(512, std::numeric_limits<float>::max());
  double lanes[8] = {};
  zero::kernel::add_squares(x.data(), x.size(), 0, lanes);
  auto const largest = static_cast<double>(std::numeric_limits<float>::max());
  CHECK(zero::kernel::sum_lanes(lanes) == doctest::Approx(512. * largest * largest));
}

TEST_CASE("the lanes are added in a fixed tree") {
  // Only where 1 and -1 meet first does anything remain of the small numbers.
  double const lanes[8] = {1., 1., 0x1p-60, 0x1p-61, -1., -1., 0x1p-62, 0x1p-63};
  CHECK(zero::kernel::sum_lanes(lanes) == 0x1p-60 + 0x1p-61 + 0x1p-62 + 0x1p-63);
}

TEST_CASE("squares of a run are added over blocks of 512, each block exactly") {
  std::vector<float> x;
  for (int i = 0; i < 5; ++i) {
    for (float const value : block<float>()) x.push_back(value);
  }
  for (std::size_t const count : {0u, 1u, 511u, 512u, 513u, 1400u, 2560u}) {
    zero::ExactSum expected;
    for (std::size_t begin = 0; begin < count; begin += 512) {
      std::size_t const end = begin + 512 < count ? begin + 512 : count;
      double lanes[8] = {};
      for (std::size_t i = begin; i < end; ++i) {
        lanes[i % 8] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
      expected.add(zero::kernel::sum_lanes(lanes));
    }
    zero::ExactSum sum;
    zero::kernel::add_squares(sum, x.data(), count);
    CHECK(sum.value() == expected.value());
    // More runs go on from there.
    zero::kernel::add_squares(sum, x.data(), count);
    CHECK(sum.value() == 2. * expected.value());
  }
}

TEST_CASE("blocks that are not finite are counted, one by one") {
  std::vector<float> x(4 * 512, 1.f);
  zero::ExactSum sum;
  x[3] = std::numeric_limits<float>::quiet_NaN();
  x[700] = std::numeric_limits<float>::infinity();
  x[701] = std::numeric_limits<float>::infinity();
  zero::kernel::add_squares(sum, x.data(), x.size());
  CHECK(!sum.finite());
  CHECK(sum.words()[zero::ExactSum::word_count - 1] == 2);
}

TEST_CASE_TEMPLATE("a range is summed block by block, however many lie abreast",
                   T,
                   float,
                   zero::bf16,
                   zero::fp16) {
  std::vector<T> x;
  for (int i = 0; i < 7; ++i) {
    auto const next = block<T>();
    for (std::size_t k = 0; k < next.size(); ++k) {
      x.push_back(next[(k * 5 + static_cast<std::size_t>(i)) % next.size()]);
    }
  }
  for (std::size_t const count : std::initializer_list<std::size_t>{
           0, 1, 511, 512, 513, 1023, 1024, 1500, 2048, 2049, 3584}) {
    zero::ExactSum expected;
    for (std::size_t first = 0; first < count; first += 512) {
      std::size_t const last = std::min<std::size_t>(first + 512, count);
      std::vector<T> const piece(x.begin() + static_cast<std::ptrdiff_t>(first),
                                 x.begin() + static_cast<std::ptrdiff_t>(last));
      double lanes[8] = {};
      reference(piece, lanes);
      expected.add(zero::kernel::sum_lanes(lanes));
    }
    zero::ExactSum sum;
    zero::kernel::add_squares(sum, x.data(), count);
    CHECK(sum.value() == expected.value());
  }
  x[700] = T(std::numeric_limits<float>::infinity());
  zero::ExactSum sum;
  zero::kernel::add_squares(sum, x.data(), x.size());
  CHECK_FALSE(sum.finite());
}

}  // namespace norm_test
