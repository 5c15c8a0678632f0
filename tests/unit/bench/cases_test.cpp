#include "zero/bench/cases.hpp"

#include "support/refusal.hpp"
#include "support/test.hpp"

namespace cases_test {

using zero::DType;
using zero::Op;
using zero::bench::CollectiveCases;
using zero::bench::detail::list;

std::vector<std::size_t> sizes(std::size_t smallest, std::size_t largest, std::size_t factor) {
  std::vector<std::size_t> found;
  for (auto const& one : list({.smallest = smallest, .largest = largest, .factor = factor})) {
    if (one.op == Op::broadcast) found.push_back(one.bytes);
  }
  return found;
}

TEST_CASE("sizes go from the smallest to the largest") {
  using Sizes = std::vector<std::size_t>;
  CHECK(sizes(1024, 65536, 4) == Sizes{1024, 4096, 16384, 65536});
  CHECK(sizes(1000, 65535, 8) == Sizes{1000, 8000, 64000});
  CHECK(sizes(5, 5, 2) == Sizes{5});
  std::size_t const largest = ~std::size_t{0};
  CHECK(sizes(largest / 2, largest, 2).size() == 2);  // and does not wrap
}

TEST_CASE("by default fp32 is measured out of place, from 1 KiB to 256 MiB") {
  auto const cases = list({});
  CHECK(cases.size() == 5 * 10);
  for (auto const& one : cases) {
    CHECK(one.dtype == DType::f32);
    CHECK(!one.in_place);
    CHECK(one.check);
    CHECK(one.late_us == 0);
  }
  CHECK(cases.front().bytes == zero::KiB);
  CHECK(cases.back().bytes == 256 * zero::MiB);
}

TEST_CASE("every type and place that is asked for, but no all-to-all in place") {
  CollectiveCases asked{.dtypes = {DType::f16, DType::bf16},
                        .in_place = true,
                        .smallest = 64,
                        .largest = 64,
                        .late_us = 3,
                        .check = false};
  auto const both = list(asked);
  CHECK(both.size() == 2 * (5 + 4));
  for (auto const& one : both) {
    CHECK((one.op != Op::all_to_all || !one.in_place));
    CHECK(!one.check);
    CHECK(one.late_us == 3);
  }
  CHECK(both.front().dtype == DType::f16);
  asked.out_of_place = false;
  CHECK(list(asked).size() == 2 * 4);
}

TEST_CASE("cases that cannot be are refused in a sentence") {
  auto const why = [](CollectiveCases const& cases) {
    return refusal([&] { static_cast<void>(list(cases)); });
  };
  CHECK(why({.smallest = 2, .largest = 1}) == "no size is from smallest, 2, to largest, 1");
  CHECK(why({.smallest = 0}).find("no size") == 0);
  CHECK(why({.factor = 1}) == "the factor from one size to the next has to be at least 2");
  CHECK(why({.ranks = {2, 0}}) == "a group has at least 1 rank, not 0");
  CHECK(why({.late_us = -1}) == "the last rank cannot begin before the others");
  CHECK(why({.dtypes = {DType::f64}}) ==
        "collectives are measured in fp32, bf16 and fp16, not in fp64");
  std::string const nothing = "nothing is to be measured: give dtypes, ranks and a place";
  CHECK(why({.dtypes = {}}) == nothing);
  CHECK(why({.ranks = {}}) == nothing);
  CHECK(why({.out_of_place = false}) == nothing);
  CHECK(why({.in_place = true}) == "");
}

}  // namespace cases_test
