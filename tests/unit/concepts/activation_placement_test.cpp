#include <zero/concepts/activation_placement.hpp>

#include <doctest/doctest.h>

#include <string_view>

namespace activation_placement_test {
namespace {

namespace activation = zero::activation;
using zero::ActivationPlacement;

/// Written as a user would: nothing in the library knows it.
struct Own {
  static constexpr std::string_view name = "own";
  static constexpr bool partitioned = true;
  static constexpr bool offloaded = false;
};
struct WholeElsewhere {
  static constexpr std::string_view name = "x";
  static constexpr bool partitioned = false;
  static constexpr bool offloaded = true;
};
struct WithState : Own {
  int state = 0;
};

}  // namespace

TEST_CASE("a placement is a name and two choices, and holds nothing") {
  static_assert(ActivationPlacement<Own>);
  static_assert(!ActivationPlacement<WholeElsewhere>);
  static_assert(!ActivationPlacement<WithState>);
  static_assert(!ActivationPlacement<int>);
  static_assert(!activation::Whole::partitioned && !activation::Whole::offloaded);
  static_assert(activation::Pa::partitioned && !activation::Pa::offloaded);
  static_assert(activation::PaCpu::partitioned && activation::PaCpu::offloaded);
  CHECK(activation::PaCpu::name == "Pa+cpu");
}

}  // namespace activation_placement_test
