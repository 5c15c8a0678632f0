#include <zero/base/version.hpp>

#include <doctest/doctest.h>

#include <type_traits>

TEST_CASE("the version is a value that ranks can compare") {
  static_assert(zero::version == zero::Version{});
  static_assert(zero::version.major == ZERO_VERSION_MAJOR);
  static_assert(zero::version.minor == ZERO_VERSION_MINOR);
  static_assert(zero::version.patch == ZERO_VERSION_PATCH);
  CHECK(zero::version != zero::Version{.major = zero::version.major + 1});
  CHECK(zero::version != zero::Version{.minor = zero::version.minor + 1});
  CHECK(zero::version != zero::Version{.patch = zero::version.patch + 1});
}

TEST_CASE("the namespace carries the version") {
  static_assert(std::is_same_v<zero::Version, zero::v0_2::Version>);
  static_assert(ZERO_VERSION_MAJOR == 0 && ZERO_VERSION_MINOR == 2, "rename the inline namespace");
}
