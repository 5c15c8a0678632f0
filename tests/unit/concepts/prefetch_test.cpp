#include <zero/concepts/prefetch.hpp>

#include <doctest/doctest.h>

#include <concepts>

TEST_CASE("a prefetch is a number of units, one unless said otherwise") {
  static_assert(zero::Prefetch{}.depth == 1);
  static_assert(zero::Prefetch{3}.depth == 3);
  static_assert(std::regular<zero::Prefetch>);
  static_assert(zero::Prefetch{1} == zero::Prefetch{});
  static_assert(zero::Prefetch{0} != zero::Prefetch{});
  CHECK(zero::Prefetch{.depth = 7}.depth == 7);
}
