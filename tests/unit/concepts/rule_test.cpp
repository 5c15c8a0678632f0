#include "archetypes.hpp"
#include <zero/concepts/rule.hpp>

#include <doctest/doctest.h>

#include <array>
#include <string_view>

namespace rule_test {
namespace {

using zero::DescribedRule;
using zero::Rule;

struct Described : archetype::Rule {
  [[nodiscard]] std::array<zero::RuleField, 1> fields() const { return {{{"lr", lr}}}; }
  friend bool operator==(Described const&, Described const&) = default;
};

struct Nameless : archetype::Rule {
  static constexpr int name = 3;
  friend bool operator==(Nameless const&, Nameless const&) = default;
};

struct NotCompared {
  static constexpr std::string_view name = "x";
  static constexpr std::array<zero::StateArray, 0> states{};
  float lr = 0.f;
  [[nodiscard]] zero::StepScalars scalars(long, float, float, float) const noexcept { return {}; }
  template <class V>
  void update(zero::StepScalars const&, V&, V const&, V*) const noexcept {}
};

struct OtherScalars : archetype::Rule {
  [[nodiscard]] float scalars(long, float, float, float) const noexcept { return 0.f; }
  friend bool operator==(OtherScalars const&, OtherScalars const&) = default;
};

struct UpdateReturns : archetype::Rule {
  template <class V>
  V update(zero::StepScalars const&, V& p, V const&, V*) const noexcept {
    return p;
  }
  friend bool operator==(UpdateReturns const&, UpdateReturns const&) = default;
};

struct UpdateThrows : archetype::Rule {
  template <class V>
  void update(zero::StepScalars const&, V&, V const&, V*) const {}
  friend bool operator==(UpdateThrows const&, UpdateThrows const&) = default;
};

struct ScalarsThrow : archetype::Rule {
  [[nodiscard]] zero::StepScalars scalars(long, float, float, float) const { return {}; }
  friend bool operator==(ScalarsThrow const&, ScalarsThrow const&) = default;
};

struct UpdateOfFloatOnly : archetype::Rule {
  void update(zero::StepScalars const&, float&, float const&, float*) const noexcept {}
  friend bool operator==(UpdateOfFloatOnly const&, UpdateOfFloatOnly const&) = default;
};

}  // namespace

TEST_CASE("a rule is a regular value with a name, states, scalars and an element function") {
  static_assert(Rule<archetype::Rule>);
  static_assert(Rule<Described>);
  static_assert(!Rule<Nameless>);
  static_assert(!Rule<NotCompared>);
  static_assert(!Rule<OtherScalars>);
  static_assert(!Rule<UpdateReturns>);
  static_assert(!Rule<UpdateOfFloatOnly>);
  static_assert(!Rule<UpdateThrows>);
  static_assert(!Rule<ScalarsThrow>);
  static_assert(!Rule<float>);
  CHECK(Rule<archetype::Rule>);
}

TEST_CASE("a rule may list its hyper-parameters; all shipped ones do") {
  static_assert(!DescribedRule<archetype::Rule>);
  static_assert(DescribedRule<Described>);
  static_assert(DescribedRule<zero::Sgd> && DescribedRule<zero::PlainSgd>);
  static_assert(DescribedRule<zero::Adam> && DescribedRule<zero::AdamW>);
  static_assert(DescribedRule<zero::Adagrad> && DescribedRule<zero::Lion>);
  CHECK(Described{}.fields()[0].value == 0.25);
}

}  // namespace rule_test
