#include "plan/model/search.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>

namespace search_test {
namespace {

using namespace plan;

}  // namespace

TEST_CASE("the last number that fits is found, and nothing beyond is tried twice over") {
  for (std::uint64_t most : {1u, 2u, 7u, 1000u}) {
    for (std::uint64_t limit = 0; limit <= most + 1; ++limit) {
      int tried = 0;
      CHECK(plan::detail::last_that_fits(most, [&](std::uint64_t number) {
              ++tried;
              CHECK(number >= 1);
              CHECK(number <= most);
              CHECK(number <= 2 * limit + 1);
              return number <= limit;
            }) == (limit < most ? limit : most));
      CHECK(tried <= 2 + 2 * std::log2(static_cast<double>(most) + 1));
    }
  }
}

TEST_CASE("the largest batch and the largest models fit, and one more does not") {
  Setup setup{.model = {.layers = 6, .hidden = 256, .heads = 4, .vocab = 1000, .sequence = 64},
              .ranks = 8,
              .activations = "whole"};
  for (std::string const& stage : stage_names()) {
    CAPTURE(stage);
    setup.policies.stage = stage;
    std::uint64_t const budget = 200'000'000;
    auto const fits = [&](Setup const& asked) {
      return plan_device(asked).total_bytes() <= budget;
    };
    Setup batch = setup;
    batch.batch = largest_batch(setup, budget);
    CHECK(batch.batch > 1);
    CHECK(fits(batch));
    ++batch.batch;
    CHECK_FALSE(fits(batch));

    Setup depth = setup;
    depth.model = largest_depth(setup, budget);
    CHECK(depth.model.layers > 6);
    CHECK(depth.model.hidden == 256);
    CHECK(fits(depth));
    ++depth.model.layers;
    CHECK_FALSE(fits(depth));
  }
  CHECK(largest_batch(setup, 1'000'000) == 0);
  CHECK(largest_depth(setup, 1'000'000).layers == 0);
}

TEST_CASE("the largest size: what §5.4 says of 32 GB and 64 ranks, less pools and activations") {
  Setup setup{.ranks = 64, .activations = "whole"};
  struct Case {
    char const* stage;
    double theory;
    double least;
  };
  for (Case const& c : {Case{"replicated", 2e9, 0.9},
                        Case{"pos", 7.64e9, 0.9},
                        Case{"pos+g", 14.42e9, 0.9},
                        Case{"pos+g+p", 128e9, 0.5}}) {
    CAPTURE(c.stage);
    setup.policies.stage = c.stage;
    setup.model = largest_size(setup, 32'000'000'000);
    REQUIRE(setup.model.layers > 0);
    auto const size = static_cast<double>(parameters(setup.model));
    CHECK(size <= c.theory);
    CHECK(size >= c.least * c.theory);
    CHECK(plan_device(setup).total_bytes() <= 32'000'000'000);
    // A percent more of the same width is a size that was tried, and did not fit.
    setup.model.layers += setup.model.layers / 100 + 1;
    CHECK(plan_device(setup).total_bytes() > 32'000'000'000);
  }
  CHECK(largest_size(setup, 1'000'000).layers == 0);
}

}  // namespace search_test
