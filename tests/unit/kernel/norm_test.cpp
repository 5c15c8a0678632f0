/// What is told of an array in a few words: the sum of its squares, and its hash.
#include "support/test.hpp"
#include <zero/base/dtype.hpp>
#include <zero/kernel/element_hash.hpp>
#include <zero/kernel/norm.hpp>

namespace norm_test {
namespace {

using zero::kernel::add_squares;
using zero::kernel::sum_lanes;

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::vector<T> block() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-40, 12);
  std::vector<T> result;
  for (int i = 0; i < 512; ++i) {
    float const drawn = std::ldexp(normal(random), exponent(random));
    if constexpr (std::is_same_v<T, double>) {
      result.push_back(static_cast<double>(drawn) * (1. + 0x1p-40));  // squares have to be rounded
    } else {
      result.push_back(T(drawn));
    }
  }
  return result;
}

struct Lanes {
  double sums[8] = {};
  bool operator==(Lanes const& other) const {
    return std::memcmp(&sums[0], &other.sums[0], sizeof sums) == 0;
  }
};

template <class T>
Lanes reference(T const* x, std::size_t count) {
  Lanes lanes;
  for (std::size_t i = 0; i < count; ++i) {
    double value = 0.;
    if constexpr (std::is_same_v<T, double>) {
      value = x[i];
    } else {
      value = static_cast<double>(static_cast<float>(x[i]));
    }
    double const volatile square = value * value;
    lanes.sums[i % 8] += square;
  }
  return lanes;
}

/// Block by block.
template <class T>
double reference_sum(std::vector<T> const& x, std::size_t count) {
  zero::ExactSum sum;
  for (std::size_t first = 0; first < count; first += 512) {
    sum.add(sum_lanes(reference(&x[first], std::min<std::size_t>(512, count - first)).sums));
  }
  return sum.value();
}

template <class T>
std::uint64_t hash(std::vector<T> const& x, std::uint64_t first = 0) {
  std::uint64_t result = 0;
  zero::kernel::add_hash(&result, x.data(), x.size(), first);
  return result;
}

template <class T>
void check_hash() {
  std::vector<T> x;
  for (int i = 0; i < 1000; ++i) x.push_back(static_cast<T>(static_cast<float>(i % 7)));
  std::uint64_t const whole = hash(x);
  // Parts add up, in any order.
  std::uint64_t parts = 0;
  zero::kernel::add_hash(&parts, x.data() + 613, 387, 613);
  zero::kernel::add_hash(&parts, x.data(), 613, 0);
  CHECK(parts == whole);
  CHECK(hash(x, 1) != whole);
  // Every element counts, and its place, and the sign of a zero.
  for (std::size_t i = 0; i < x.size(); ++i) {
    auto other = x;
    other[i] = static_cast<T>(7.f);
    REQUIRE(hash(other) != whole);
    std::swap(other[i] = x[i], other[(i + 1) % x.size()]);
    REQUIRE((hash(other) == whole) == (x[i] == x[(i + 1) % x.size()]));
  }
  if constexpr (std::is_integral_v<T>) return;
  x[0] = static_cast<T>(-0.f);
  CHECK(hash(x) != whole);
}

}  // namespace

TEST_CASE_TEMPLATE("however a block is cut, the lanes end with the same bits",
                   T,
                   float,
                   double,
                   zero::bf16,
                   zero::fp16) {
  auto const x = block<T>();
  Lanes const expected = reference(x.data(), x.size());
  // Calls of one size, the first of them another one; and any alignment.
  auto const in_pieces = [&](std::size_t first, std::size_t size, std::size_t shift = 0) {
    std::vector<T> moved(shift);
    moved.insert(moved.end(), x.begin(), x.end());
    Lanes lanes;
    std::size_t count = first;
    for (std::size_t i = 0; i < x.size(); i += count, count = size) {
      count = std::min(count, x.size() - i);
      add_squares(moved.data() + shift + i, count, i, lanes.sums);
    }
    return lanes;
  };
  for (std::size_t cut = 1; cut <= x.size(); ++cut) CHECK((in_pieces(cut, 512) == expected));
  for (std::size_t size = 1; size < 40; ++size) CHECK((in_pieces(size, size) == expected));
  for (std::size_t shift = 0; shift < 16; ++shift) CHECK((in_pieces(512, 512, shift) == expected));
  // The position in the element space counts modulo the lanes only.
  Lanes lanes;
  add_squares(x.data(), x.size(), std::uint64_t{1} << 40, lanes.sums);
  CHECK((lanes == expected));
}

TEST_CASE("nothing is added for no elements") {
  double lanes[8] = {1., 2., 3., 4., 5., 6., 7., 8.};
  add_squares(static_cast<float const*>(nullptr), 0, 5, lanes);
  CHECK(sum_lanes(lanes) == 36.);
}

TEST_CASE("a value that is not finite makes the sum not finite, wherever it stands") {
  for (float const bad : {infinity, -infinity, nan}) {
    for (std::size_t at = 0; at < 40; ++at) {
      std::vector<float> x(40, 1.f);
      x[at] = bad;
      double lanes[8] = {};
      add_squares(x.data(), x.size(), 0, lanes);
      CHECK(!std::isfinite(sum_lanes(lanes)));
    }
  }
}

TEST_CASE("the largest floats do not overflow, and lanes are added in a fixed tree") {
  std::vector<float> const x(512, std::numeric_limits<float>::max());
  double sums[8] = {};
  add_squares(x.data(), x.size(), 0, sums);
  auto const largest = static_cast<double>(std::numeric_limits<float>::max());
  CHECK(sum_lanes(sums) == doctest::Approx(512. * largest * largest));
  // Only where 1 and -1 meet first does anything remain of the small numbers.
  double const lanes[8] = {1., 1., 0x1p-60, 0x1p-61, -1., -1., 0x1p-62, 0x1p-63};
  CHECK(sum_lanes(lanes) == 0x1p-60 + 0x1p-61 + 0x1p-62 + 0x1p-63);
}

TEST_CASE_TEMPLATE("a range is summed block by block, however many lie abreast, each exactly",
                   T,
                   float,
                   double,
                   zero::bf16,
                   zero::fp16) {
  std::vector<T> x;
  auto const values = block<T>();
  for (std::size_t i = 0; i < 7 * 512; ++i) x.push_back(values[(i * 5 + i / 512) % 512]);
  for (std::size_t const count : std::initializer_list<std::size_t>{
           0, 1, 511, 512, 513, 1023, 1024, 1400, 1500, 2048, 2049, 2560, 3584}) {
    zero::ExactSum sum;
    add_squares(sum, x.data(), count);
    CHECK(sum.value() == reference_sum(x, count));
    // More runs go on from there.
    add_squares(sum, x.data(), count);
    CHECK(sum.value() == 2. * reference_sum(x, count));
  }
  // Blocks that are not finite are counted, one by one.
  x[3] = T(nan);
  x[700] = x[701] = T(infinity);
  zero::ExactSum sum;
  add_squares(sum, x.data(), x.size());
  CHECK(!sum.finite());
  CHECK(sum.words()[zero::ExactSum::word_count - 1] == 2);
}

TEST_CASE("a hash tells arrays apart by every element and its place, and is the sum of parts") {
  check_hash<float>();
  check_hash<double>();
  check_hash<zero::bf16>();
  check_hash<zero::fp16>();
  check_hash<std::uint8_t>();
}

}  // namespace norm_test
