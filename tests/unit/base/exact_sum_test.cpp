#include "support/test.hpp"
#include <zero/base/exact_sum.hpp>

namespace exact_sum_test {
namespace {

using zero::ExactSum;

constexpr double largest = std::numeric_limits<double>::max();
constexpr double smallest = std::numeric_limits<double>::denorm_min();

double exact(std::vector<double> const& values) {
  ExactSum sum;
  for (double value : values) sum.add(value);
  return sum.value();
}

/// Shewchuk's algorithm with the last rounding of Python's math.fsum: another way to the correctly
/// rounded sum. Valid while no partial sum overflows.
double fsum(std::vector<double> const& values) {
  std::vector<double> partials;
  for (double x : values) {
    std::size_t kept = 0;
    for (double y : partials) {
      if (std::fabs(x) < std::fabs(y)) std::swap(x, y);
      double const high = x + y;
      double const low = y - (high - x);
      if (low != 0.) partials[kept++] = low;
      x = high;
    }
    partials.resize(kept);
    partials.push_back(x);
  }
  if (partials.empty()) return 0.;
  std::size_t n = partials.size() - 1;
  double high = partials[n];
  double low = 0.;
  while (n > 0) {
    double const x = high;
    double const y = partials[--n];
    high = x + y;
    low = y - (high - x);
    if (low != 0.) break;
  }
  if (n > 0 && ((low < 0. && partials[n - 1] < 0.) || (low > 0. && partials[n - 1] > 0.))) {
    double const twice = low * 2.;
    double const x = high + twice;
    if (twice == x - high) high = x;
  }
  return high;
}

std::vector<double> random_values(std::size_t count, int spread, unsigned seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> exponent(-spread, spread);
  std::uniform_real_distribution<double> mantissa(-1., 1.);
  std::vector<double> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(std::ldexp(mantissa(random), exponent(random)));
  }
  return values;
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

}  // namespace

static_assert([] {
  ExactSum sum;
  sum.add(1e300);
  sum.add(1.);
  sum.add(-1e300);
  return sum.value() == 1.;
}());
static_assert(sizeof(ExactSum) == 552);

TEST_CASE("one value is itself, none and a cancelled one are zero") {
  std::vector<double> values{
      largest, 0x1.fffffffffffffp-1023, 0x1.123456789abcdp0, 3e-310, 1e308, 0.};
  for (int exponent = -1074; exponent <= 1023; ++exponent)
    values.push_back(std::ldexp(1., exponent));
  for (double const value : values) {
    CHECK(exact({value}) == value);
    CHECK(exact({-value}) == -value);
    CHECK(same_bits(exact({value, -value}), 0.));
  }
  CHECK(same_bits(exact({}), 0.));
}

TEST_CASE("sums lose nothing, and are rounded once, to nearest even") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  struct Row {
    std::vector<double> values;
    double sum;
  };
  std::vector<Row> rows{
      {{1., 0x1p-53}, 1.},
      {{1. + 0x1p-52, 0x1p-53}, 1. + 0x1p-51},
      {{0x1.fffffffffffffp0, 0x1p-53}, 2.},  // the carry runs into the exponent
      {{0x1p53, 1.}, 0x1p53},
      {{0x1p53, 1., 1.}, 0x1p53 + 2.},
      // Cancellation.
      {{1e300, 1e-300, -1e300}, 1e-300},
      {{largest, smallest, -largest}, smallest},
      {{1e16, 1., -1e16}, 1.},
      {{largest, largest, -largest, -largest, 3.}, 3.},
      // Subnormals.
      {{smallest, smallest}, 2 * smallest},
      {std::vector<double>(1000, 0x1.8p-1070), 1000 * 0x1.8p-1070},
      {{0x1p-1022, -smallest}, 0x1p-1022 - smallest},
      {{0x1.fffffffffffffp-1023, smallest}, 0x1.fffffffffffffp-1023 + smallest},
      // Beyond the largest double.
      {{largest, largest}, infinity},
      {{largest, 0x1p970}, infinity},            // a tie, to even: up
      {{largest, 0x1p970, -smallest}, largest},  // just below it
      {std::vector<double>(100000, largest), infinity},
  };
  // However far below the tie the rest is.
  for (int exponent = -54; exponent >= -1074; --exponent) {
    double const rest = std::ldexp(1., exponent);
    rows.push_back({{1., 0x1p-53, rest}, 1. + 0x1p-52});
    rows.push_back({{1., 0x1p-53, -rest}, 1.});
  }
  std::vector<double> all = random_values(1000, 900, 5);
  for (std::size_t k = 0; k < 1000; ++k) all.push_back(-all[k]);
  all.push_back(0x1p-1060);
  std::shuffle(all.begin(), all.end(), std::mt19937(1));
  rows.push_back({all, 0x1p-1060});
  for (Row& row : rows) {
    CHECK(exact(row.values) == row.sum);
    for (double& value : row.values) value = -value;
    CHECK(exact(row.values) == -row.sum);
  }
}

TEST_CASE("what is not finite makes the sum NaN") {
  double const infinity = std::numeric_limits<double>::infinity();
  for (double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()}) {
    ExactSum sum;
    sum.add(1.);
    CHECK(sum.finite());
    sum.add(bad);
    sum.add(-1.);
    CHECK(!sum.finite());
    CHECK(std::isnan(sum.value()));
    CHECK(sum.words()[ExactSum::word_count - 1] == 1);
  }
}

TEST_CASE("agrees with another algorithm for the correctly rounded sum") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    int const spread = std::array{3, 30, 60, 300, 1000}[seed % 5];
    auto const values = random_values(1 + seed % 97, spread, seed);
    CHECK(same_bits(exact(values), fsum(values)));
  }
}

TEST_CASE("no order and no grouping changes a bit, added up as words or as accumulators") {
  auto values = random_values(3000, 700, 11);
  double const expected = exact(values);
  std::mt19937 random(2);
  for (int round = 0; round < 20; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    std::size_t const ranks = 1 + random() % 9;
    std::vector<ExactSum> parts(ranks);
    for (double value : values) parts[random() % ranks].add(value);
    ExactSum total;
    ExactSum words;
    auto& sum = words.words();
    for (auto& part : parts) {
      total.add(part);
      auto const& own = part.words();
      for (std::size_t i = 0; i < ExactSum::word_count; ++i) sum[i] += own[i];
    }
    CHECK(same_bits(total.value(), expected));
    CHECK(same_bits(ExactSum::value(sum), expected));
    CHECK(same_bits(words.value(), expected));
    CHECK(std::ranges::equal(total.words(), words.words()));
    // More may be added after an all-reduce.
    words.add(1e200);
    words.add(-1e200);
    CHECK(same_bits(words.value(), expected));
  }
}

TEST_CASE("three additions to the accumulators are one to the sum") {
  auto values = random_values(2000, 900, 21);
  values.push_back(0.);
  values.push_back(std::numeric_limits<double>::denorm_min());
  values.push_back(std::numeric_limits<double>::max());
  ExactSum sum;
  ExactSum apart;
  for (double const value : values) {
    sum.add(value);
    ExactSum::Addend const parts = ExactSum::addend(value);
    apart.accumulators()[parts.first] += parts.low;
    apart.accumulators()[parts.first + 1] += parts.middle;
    apart.accumulators()[parts.first + 2] += parts.high;
  }
  CHECK(std::ranges::equal(sum.words(), apart.words()));
  CHECK(same_bits(sum.value(), apart.value()));
  ExactSum::Addend const bad = ExactSum::addend(std::numeric_limits<double>::infinity());
  apart.accumulators()[bad.first] += bad.low;
  apart.accumulators()[bad.first + 1] += bad.middle;
  apart.accumulators()[bad.first + 2] += bad.high;
  CHECK(!apart.finite());
}

TEST_CASE("the words of 2^20 ranks fit") {
  // The worst a normalized accumulator holds: all digits at their largest.
  ExactSum sum;
  auto& words = sum.words();
  for (std::size_t i = 0; i + 2 < ExactSum::word_count; ++i) words[i] = 0xffffffff;
  for (auto& word : words) word *= ExactSum::max_ranks;
  for (auto word : words) CHECK(std::abs(word) < (std::int64_t{1} << 53));
  sum.add(-1.);
  CHECK(sum.finite());
  CHECK(sum.value() == std::numeric_limits<double>::infinity());
}

TEST_CASE("carries are in time") {
  // Normalizing after every addition and never by hand must agree; the sum is known.
  ExactSum often;
  ExactSum rarely;
  for (int i = 0; i < 100000; ++i) {
    often.add(0x1.fffffffffffffp31);
    often.normalize();
    rarely.add(0x1.fffffffffffffp31);
  }
  CHECK(often.value() == rarely.value());
  CHECK(often.value() == fsum(std::vector<double>(100000, 0x1.fffffffffffffp31)));
}

}  // namespace exact_sum_test
