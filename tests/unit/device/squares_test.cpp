// What the threads of a device do for the norm, run on the host: the same source.
#include "zero/device/squares.hpp"

#include "support/test.hpp"
#include "zero/base/exact_sum.hpp"
#include "zero/device/addends.hpp"

namespace squares_test {
namespace {

namespace device = zero::device;
using device::Addends;

/// A sum that counts how often something is put out to it.
struct Counted {
  zero::ExactSum sum;
  int puts = 0;
  void operator()(unsigned word, std::int64_t part) {
    REQUIRE(word < zero::ExactSum::word_count);
    sum.accumulators()[word] += part;
    ++puts;
  }
};

/// Adds numbers as several threads do, and holds the sum against one that adds them itself.
int check_sum(std::vector<double> const& numbers) {
  constexpr std::size_t threads = 4;
  Counted counted;
  auto const put = [&](unsigned word, std::int64_t part) { counted(word, part); };
  Addends added[threads] = {};
  zero::ExactSum expected;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    expected.add(numbers[i]);
    added[i % threads].add(zero::ExactSum::addend(numbers[i]), put);
  }
  int const puts = counted.puts;
  for (std::size_t t = 1; t < threads; ++t) {
    auto const words = [](auto word) { return word; };
    added[0].add(added[t].of_another(words), put);
  }
  added[0].put_out(put);
  added[0].put_out(put);  // there is nothing left
  CHECK(
      std::equal(std::begin(counted.sum.words()), std::end(counted.sum.words()), expected.words()));
  return puts;
}

TEST_CASE("what threads keep of an exact sum is the sum, whatever they add") {
  std::mt19937_64 random(20261126);
  std::vector<double> any;
  std::vector<double> near;
  for (int i = 0; i < 20'000; ++i) {
    // Every pattern but infinities and NaN: subnormal, negative, the largest.
    std::uint64_t bits = random();
    if ((bits >> 52 & 0x7ff) == 0x7ff) bits &= ~(std::uint64_t{1} << 52);
    if (i % 16 == 0) bits &= ~(std::uint64_t{0x7ff} << 52);
    any.push_back(std::bit_cast<double>(bits));
    // On both sides of where a number takes the next words.
    near.push_back(std::ldexp(1. + static_cast<double>(random() >> 12) * 0x1p-52,
                              static_cast<int>(random() % 24) - 12));
  }
  CHECK(check_sum({}) == 0);
  CHECK(check_sum({0.}) == 0);
  check_sum(any);
  // Once a thread has seen the smaller ones, it keeps all.
  CHECK(check_sum(near) <= 4 * 4);
  check_sum({std::numeric_limits<double>::infinity(), 1., -1.});
  check_sum({(std::numeric_limits<double>::max)(), std::numeric_limits<double>::denorm_min()});
}

}  // namespace
}  // namespace squares_test
