#include "rule_reference.hpp"
#include <zero/rule/rmsprop.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace rmsprop_test {
namespace {

/// torch.optim.RMSprop's formula in fp64.
template <bool WithMomentum, bool Centered>
auto reference(zero::RmsProp<WithMomentum, Centered> const& rule,
               double lr_scale = 1.,
               double wd_scale = 1.) {
  return [=](long, double& p, double g, double* state) {
    g = (rule.maximize ? -g : g) + static_cast<double>(rule.weight_decay) * wd_scale * p;
    state[0] = rule.alpha * state[0] + (1. - rule.alpha) * g * g;
    double variance = state[0];
    if (Centered) {
      double& mean = state[1 + int{WithMomentum}];
      mean = rule.alpha * mean + (1. - rule.alpha) * g;
      variance -= mean * mean;
    }
    double direction = g / (std::sqrt(std::fmax(variance, 0.)) + static_cast<double>(rule.eps));
    if (WithMomentum) {
      state[1] = static_cast<double>(rule.momentum) * state[1] + direction;
      direction = state[1];
    }
    p -= static_cast<double>(rule.lr) * lr_scale * direction;
  };
}

template <bool WithMomentum, bool Centered>
void follows_its_formula() {
  Problem const problem;
  zero::RmsProp<WithMomentum, Centered> rule{.lr = 2e-3f, .alpha = 0.875, .eps = 1e-3f};
  CHECK(worst_ulps(rule, reference(rule), problem) <= 40.);
  rule.weight_decay = 0.1f;
  rule.maximize = true;
  if (WithMomentum) rule.momentum = 0.75f;
  // A variance is a difference, which has fewer digits than what it is one of.
  CHECK(worst_ulps(rule, reference(rule, 0.5, 2.), problem, 0.5f, 2.f) <= (Centered ? 100. : 40.));
  CHECK(zeros_stay_zeros(rule));
}

}  // namespace

TEST_CASE("RmsProp follows its formula in fp64") {
  follows_its_formula<false, false>();
  follows_its_formula<true, false>();
  follows_its_formula<false, true>();
  follows_its_formula<true, true>();
}

TEST_CASE("steps computed by hand") {
  zero::RmsProp<> const rule{.lr = 0.5f, .alpha = 0.75, .eps = 0.f};
  float state[3] = {};
  CHECK(after_step(rule, 1, 1.f, 4.f, state) == 0.f);  // v = 4, 1 - 0.5 · 4 / 2
  CHECK(state[0] == 4.f);
}

TEST_CASE("gradients that are all alike have no variance, rather than less than none") {
  zero::RmsProp<false, true> const rule{.lr = 1e-3f, .alpha = 0.5, .eps = 0.5f};
  for (float const gradient : {0.1f, 0.3f, 0.7f, 1.1f, 1.3f}) {
    float state[2] = {};
    float p = 0.f;
    for (long t = 1; t <= 200; ++t) p = after_step(rule, t, p, gradient, state);
    CHECK(p == doctest::Approx(-0.4f * gradient).epsilon(0.02));  // each a step of 1e-3 · g / eps
  }
}

TEST_CASE("RmsProp has as many states as it needs, and names its hyper-parameters") {
  static_assert(zero::RmsProp<>::states.size() == 1);
  static_assert(zero::RmsProp<true>::states[1].name == "momentum_buffer");
  static_assert(zero::RmsProp<false, true>::states[1].name == "grad_avg");
  static_assert(zero::RmsProp<true, true>::states[2].name == "grad_avg");
  zero::RmsProp<true> const rule{.lr = 0.5f,
                                 .alpha = 0.25,
                                 .eps = 0.125f,
                                 .momentum = 0.75f,
                                 .weight_decay = 2.f,
                                 .maximize = true};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "alpha") == 0.25);
  CHECK(field(rule, "eps") == 0.125);
  CHECK(field(rule, "momentum") == 0.75);
  CHECK(field(rule, "weight_decay") == 2.);
  CHECK(field(rule, "maximize") == 1.);
  // A momentum that nothing holds is refused where an optimizer is constructed.
  auto const momentum_of = [](auto const& of) { return of.fields()[3]; };
  CHECK(momentum_of(rule).below == 1.);
  CHECK(momentum_of(zero::RmsProp<>{}).below < 1e-40);
}

}  // namespace rmsprop_test
