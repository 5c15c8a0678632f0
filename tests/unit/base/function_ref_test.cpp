#include "zero/base/function_ref.hpp"

#include <doctest/doctest.h>

namespace function_ref_test {
namespace {

using zero::detail::FunctionRef;

TEST_CASE("a copy calls the function, not what it was copied from") {
  int sum = 0;
  auto const add = [&](int value) { return sum += value; };
  FunctionRef<void(int)> first(add);
  auto const copy = FunctionRef<void(int)>(first);
  auto const never = [](int /*value*/) { FAIL("another function was called"); };
  first = FunctionRef<void(int)>(never);
  copy(3);
  CHECK(sum == 3);
}

TEST_CASE("arguments arrive as they are given") {
  int value = 1;
  auto set = [](int& to, int const& from) { to = from; };
  FunctionRef<void(int&, int const&)>{set}(value, 5);
  CHECK(value == 5);
}

}  // namespace
}  // namespace function_ref_test
