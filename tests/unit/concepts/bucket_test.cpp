#include <zero/concepts/bucket.hpp>

#include <doctest/doctest.h>

#include <concepts>
#include <cstddef>

TEST_CASE("a bucket is a number of bytes, 25 MiB unless said otherwise") {
  static_assert(zero::Bucket{}.bytes == std::size_t{25} * 1024 * 1024);
  static_assert(zero::Bucket{.bytes = 7}.bytes == 7);
  static_assert(zero::Bucket{3 * zero::MiB}.bytes == 3 * zero::MiB);
  CHECK(zero::Bucket{}.bytes == 26'214'400);
}

TEST_CASE("a bucket is a plain value") {
  static_assert(std::regular<zero::Bucket>);
  static_assert(zero::Bucket{} == zero::Bucket{25 * zero::MiB});
  static_assert(zero::Bucket{1} != zero::Bucket{2});
  static_assert(sizeof(zero::Bucket) == sizeof(std::size_t));
}
