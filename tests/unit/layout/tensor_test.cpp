#include "support/refusal.hpp"
#include <zero/layout/tensor.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace tensor_test {
namespace {

std::uint64_t count_of(std::vector<std::size_t> shape) {
  return zero::element_count({.name = "x", .shape = std::move(shape)});
}

constexpr std::size_t two_to(int exponent) { return std::size_t{1} << exponent; }

}  // namespace

TEST_CASE("a tensor has the product of its shape as elements") {
  CHECK(count_of({}) == 1);
  CHECK(count_of({7}) == 7);
  CHECK(count_of({3, 4, 5}) == 60);
  CHECK(count_of({1, 1}) == 1);
}

TEST_CASE("a scalar needs no shape, and no warning asks for one") {
  zero::Tensor const scalar{.name = "temperature", .unit = 1};
  CHECK(zero::element_count(scalar) == 1);
  CHECK(scalar.unit == 1);
}

TEST_CASE("a tensor may be empty") {
  CHECK(count_of({0}) == 0);
  CHECK(count_of({5, 0, 3}) == 0);
}

TEST_CASE("a tensor may have more than 2^32 elements") {
  CHECK(count_of({two_to(31), two_to(31)}) == std::uint64_t{1} << 62);
  CHECK(count_of({two_to(32) + 1}) == (std::uint64_t{1} << 32) + 1);
  CHECK(count_of({std::numeric_limits<std::size_t>::max()}) ==
        std::numeric_limits<std::uint64_t>::max());
}

TEST_CASE("a shape whose product does not fit is refused") {
  CHECK(refusal([] {
          (void)count_of({two_to(32), two_to(32)});
        }) == "a size does not fit in 64 bits (multiplication overflows)");
  CHECK(refusal([] {
          (void)count_of({3, two_to(63)});
        }) == "a size does not fit in 64 bits (multiplication overflows)");
}

TEST_CASE("an empty tensor does not overflow, whichever extent is zero") {
  CHECK(count_of({0, two_to(63), 4}) == 0);
  CHECK(count_of({two_to(63), 4, 0}) == 0);
}

TEST_CASE("by default a tensor is trained, in unit 0, with the rule's own numbers") {
  zero::Tensor const tensor{.name = "x", .shape = {2}};
  CHECK(tensor.unit == 0);
  CHECK(tensor.weight_decay == 1.f);
  CHECK(tensor.learning_rate == 1.f);
  CHECK_FALSE(tensor.frozen);
  CHECK(tensor.tied_to.empty());
}

}  // namespace tensor_test
