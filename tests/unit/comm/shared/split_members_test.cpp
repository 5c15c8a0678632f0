#include "zero/comm/shared/split_members.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace split_members_test {
namespace {

using zero::detail::split_members;

TEST_CASE("ranks of a color, by key, then by rank") {
  std::vector<zero::detail::SplitChoice> const choices{{1, 5}, {2, 0}, {1, -3}, {1, 5}, {2, 0}};
  CHECK(split_members(choices, 1) == std::vector{2, 0, 3});
  CHECK(split_members(choices, 2) == std::vector{1, 4});
  CHECK(split_members(choices, 3).empty());
}

}  // namespace
}  // namespace split_members_test
