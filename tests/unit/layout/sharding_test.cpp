#include <zero/layout/sharding.hpp>

#include <doctest/doctest.h>

TEST_CASE("each level of sharding includes the one before") {
  int nested = 0;
  for (int bits = 0; bits < 8; ++bits) {
    zero::Sharding const sharding{
        .optimizer = (bits & 1) != 0, .gradients = (bits & 2) != 0, .parameters = (bits & 4) != 0};
    bool const expected = bits == 0 || bits == 1 || bits == 3 || bits == 7;
    CHECK(sharding.nested() == expected);
    nested += sharding.nested() ? 1 : 0;
  }
  CHECK(nested == 4);
}

TEST_CASE("sharding is a plain value") {
  static_assert(zero::Sharding{} == zero::Sharding{false, false, false});
  static_assert(zero::Sharding{.optimizer = true} != zero::Sharding{});
  static_assert(zero::Sharding{}.nested());
}
