#include <zero/base/dtype.hpp>
#include <zero/kernel/hash.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hash_test {
namespace {

template <class T>
std::uint64_t hash(std::vector<T> const& x, std::uint64_t first = 0) {
  std::uint64_t result = 0;
  zero::kernel::add_hash(&result, x.data(), x.size(), first);
  return result;
}

template <class T>
void check() {
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
  x[0] = static_cast<T>(-0.f);
  CHECK(hash(x) != whole);
}

TEST_CASE("a hash tells arrays apart by every element and its place, and is the sum of parts") {
  check<float>();
  check<double>();
  check<zero::bf16>();
  check<zero::fp16>();
}

}  // namespace
}  // namespace hash_test
