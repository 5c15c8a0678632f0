#include "rule_reference.hpp"
#include <zero/rule/adam.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace adam_test {
namespace {

/// torch.optim.Adam's formula in fp64.
auto reference(zero::Adam const& rule, double lr_scale = 1., double wd_scale = 1.) {
  return [=](long t, double& p, double g, double* state) {
    g += static_cast<double>(rule.weight_decay) * wd_scale * p;
    state[0] = rule.beta1 * state[0] + (1. - rule.beta1) * g;
    state[1] = rule.beta2 * state[1] + (1. - rule.beta2) * g * g;
    double const corrected1 = state[0] / (1. - std::pow(rule.beta1, static_cast<double>(t)));
    double const corrected2 = state[1] / (1. - std::pow(rule.beta2, static_cast<double>(t)));
    p -= static_cast<double>(rule.lr) * lr_scale * corrected1 /
         (std::sqrt(corrected2) + static_cast<double>(rule.eps));
  };
}

}  // namespace

TEST_CASE("Adam follows its formula in fp64") {
  Problem const problem;
  zero::Adam const plain{};
  // One rounding of p a step, 60 steps, and a little for the step itself.
  CHECK(worst_ulps(plain, reference(plain), problem) <= 20.);
  zero::Adam const decayed{
      .lr = 3e-3f, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6f, .weight_decay = 0.1f};
  CHECK(worst_ulps(decayed, reference(decayed), problem) <= 20.);
  CHECK(worst_ulps(decayed, reference(decayed, 0.5, 2.), problem, 0.5f, 2.f) <= 20.);
}

TEST_CASE("Adam's first step is lr in the direction of the gradient") {
  zero::Adam const rule{.lr = 0.125f, .eps = 0.f};
  float state[2] = {};
  CHECK(after_step(rule, 1, 1.f, 3.f, state) == doctest::Approx(0.875f).epsilon(1e-6));
  CHECK(state[0] == doctest::Approx(0.3f).epsilon(1e-6));
  CHECK(state[1] == doctest::Approx(0.009f).epsilon(1e-6));
  float other[2] = {};
  CHECK(after_step(rule, 1, 1.f, -1e-3f, other) == doctest::Approx(1.125f).epsilon(1e-6));
}

TEST_CASE("Adam's weight decay passes through the moments") {
  zero::Adam const rule{.lr = 0.125f, .eps = 0.f, .weight_decay = 0.5f};
  float state[2] = {};
  (void)after_step(rule, 1, 2.f, 0.f, state);
  CHECK(state[0] == doctest::Approx(0.1f).epsilon(1e-6));  // (1 - 0.9) · 0.5 · 2
}

TEST_CASE("Adam's first bias correction keeps its digits") {
  // In fp32 1 - 0.999 is off by 5e-5 of itself.
  zero::Adam const rule{};
  auto const scalars = rule.scalars(1, 1.f, 1.f, 1.f);
  float state[2] = {};
  float p = 0.f;
  rule.update<float>(scalars, p, 1.f, state);
  CHECK(std::fabs(static_cast<double>(state[1]) - 0.001) <= 0.001 * 0x1p-24);
  CHECK(static_cast<double>(p) == doctest::Approx(-1.).epsilon(1e-7));
}

TEST_CASE("Adam long after its start") {
  zero::Adam const rule{};
  auto const scalars = rule.scalars(1'000'000'000L, 0.5f, 1.f, 1.f);
  float state[2] = {0.f, 0.f};
  float p = 0.f;
  rule.update<float>(scalars, p, 1.f, state);
  CHECK(p == doctest::Approx(-0.5f * 0.1f / std::sqrt(0.001f)).epsilon(1e-5));
}

TEST_CASE("powers by squaring") {
  CHECK(zero::detail::power(0.5, 0) == 1.);
  CHECK(zero::detail::power(0.5, 1) == 0.5);
  CHECK(zero::detail::power(0.5, 30) == 0x1p-30);
  CHECK(zero::detail::power(0.999, 100000) ==
        doctest::Approx(std::pow(0.999, 100000.)).epsilon(1e-11));
}

TEST_CASE("Adam leaves zeros alone and names its hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::Adam{.weight_decay = 0.1f}));
  zero::Adam const rule{
      .lr = 0.5f, .beta1 = 0.25, .beta2 = 0.75, .eps = 0.125f, .weight_decay = 2.f};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "beta1") == 0.25);
  CHECK(field(rule, "beta2") == 0.75);
  CHECK(field(rule, "eps") == 0.125);
  CHECK(field(zero::Adam{.maximize = true}, "maximize") == 1.);
  CHECK(field(rule, "weight_decay") == 2.);
}

}  // namespace adam_test
