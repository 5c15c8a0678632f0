#include "rule_reference.hpp"
#include <zero/rule/lion.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

namespace lion_test {
namespace {

/// The paper's program 1 in fp64. A direction so close to zero that its sign in fp32 is a matter of
/// rounding would make any comparison meaningless; `nearest` records how close one came.
auto reference(zero::Lion const& rule,
               double& nearest,
               double lr_scale = 1.,
               double wd_scale = 1.) {
  return [=, &nearest](long, double& p, double g, double* state) {
    double const lr = static_cast<double>(rule.lr) * lr_scale;
    double const direction = rule.beta1 * state[0] + (1. - rule.beta1) * g;
    double const size = std::fabs(rule.beta1 * state[0]) + std::fabs(g);
    if (direction != 0.) nearest = std::fmin(nearest, std::fabs(direction) / size);
    double const sign = direction > 0. ? 1. : direction < 0. ? -1. : 0.;
    p -= lr * static_cast<double>(rule.weight_decay) * wd_scale * p;
    p -= lr * sign;
    state[0] = rule.beta2 * state[0] + (1. - rule.beta2) * g;
  };
}

}  // namespace

TEST_CASE("Lion follows its formula in fp64") {
  Problem const problem;
  double nearest = 1.;
  zero::Lion const plain{};
  CHECK(worst_ulps(plain, reference(plain, nearest), problem) <= 40.);
  zero::Lion const decayed{.lr = 3e-3f, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5f};
  CHECK(worst_ulps(decayed, reference(decayed, nearest), problem) <= 40.);
  CHECK(worst_ulps(decayed, reference(decayed, nearest, 0.5, 2.), problem, 0.5f, 2.f) <= 40.);
  REQUIRE(nearest > 1e-6);
}

TEST_CASE("steps computed by hand") {
  zero::Lion const rule{.lr = 0.25f, .beta1 = 0.5, .beta2 = 0.75};
  float state[1] = {};
  CHECK(after_step(rule, 1, 1.f, 4.f, state) == 0.75f);
  CHECK(state[0] == 1.f);
  CHECK(after_step(rule, 2, 0.75f, -1.f, state) == 0.75f);  // 0.5 · 1 - 0.5 · 1: no direction
  CHECK(state[0] == 0.5f);
  CHECK(after_step(rule, 3, 0.75f, -4.f, state) == 1.f);

  zero::Lion const decayed{.lr = 0.25f, .weight_decay = 0.5f};
  float still[1] = {};
  CHECK(after_step(decayed, 1, 2.f, 0.f, still) == 1.75f);
  CHECK(after_step(decayed, 1, 2.f, 0.f, still, 2.f, 1.f) == 1.5f);
  CHECK(after_step(decayed, 1, 2.f, 0.f, still, 1.f, 0.f) == 2.f);
}

TEST_CASE("a NaN is not a direction") {
  zero::Lion const rule{};
  float state[1] = {};
  CHECK(std::isnan(after_step(rule, 1, 1.f, std::numeric_limits<float>::quiet_NaN(), state)));
}

TEST_CASE("Lion leaves zeros alone and names its hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::Lion{.weight_decay = 0.1f}));
  zero::Lion const rule{.lr = 0.5f, .beta1 = 0.25, .beta2 = 0.75, .weight_decay = 2.f};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "beta1") == 0.25);
  CHECK(field(rule, "beta2") == 0.75);
  CHECK(field(rule, "weight_decay") == 2.);
}

}  // namespace lion_test
