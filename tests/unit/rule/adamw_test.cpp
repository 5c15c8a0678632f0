#include "rule_reference.hpp"
#include <zero/rule/adamw.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace adamw_test {
namespace {

/// torch.optim.AdamW's formula in fp64.
auto reference(zero::AdamW const& rule, double lr_scale = 1., double wd_scale = 1.) {
  return [=](long t, double& p, double g, double* state) {
    double const lr = static_cast<double>(rule.lr) * lr_scale;
    p *= 1. - lr * static_cast<double>(rule.weight_decay) * wd_scale;
    state[0] = rule.beta1 * state[0] + (1. - rule.beta1) * g;
    state[1] = rule.beta2 * state[1] + (1. - rule.beta2) * g * g;
    double const corrected1 = state[0] / (1. - std::pow(rule.beta1, static_cast<double>(t)));
    double const corrected2 = state[1] / (1. - std::pow(rule.beta2, static_cast<double>(t)));
    p -= lr * corrected1 / (std::sqrt(corrected2) + static_cast<double>(rule.eps));
  };
}

}  // namespace

TEST_CASE("AdamW follows its formula in fp64") {
  Problem const problem;
  zero::AdamW const plain{};
  // Two roundings of p a step, 60 steps.
  CHECK(worst_ulps(plain, reference(plain), problem) <= 20.);
  zero::AdamW const strong{
      .lr = 3e-3f, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6f, .weight_decay = 5.f};
  CHECK(worst_ulps(strong, reference(strong), problem) <= 20.);
  CHECK(worst_ulps(strong, reference(strong, 0.5, 2.), problem, 0.5f, 2.f) <= 20.);
}

TEST_CASE("AdamW's weight decay shrinks the parameter and not the moments") {
  zero::AdamW const rule{.lr = 0.125f, .weight_decay = 0.5f};
  float state[2] = {};
  CHECK(after_step(rule, 1, 2.f, 0.f, state) == 2.f - 0.125f * 0.5f * 2.f);
  CHECK(state[0] == 0.f);
  CHECK(state[1] == 0.f);
  CHECK(after_step(rule, 1, 2.f, 0.f, state, 2.f, 1.f) == 1.75f);   // learning-rate scale
  CHECK(after_step(rule, 1, 2.f, 0.f, state, 1.f, 3.f) == 1.625f);  // weight-decay scale
  CHECK(after_step(rule, 1, 2.f, 0.f, state, 1.f, 0.f) == 2.f);
}

TEST_CASE("a small decay is not lost in 1 - lr * weight_decay") {
  // 1 - 3e-8 is 1 in fp32, yet a parameter just below a power of two has finer digits than that.
  zero::AdamW const rule{.lr = 3e-6f, .weight_decay = 1e-2f};
  float state[2] = {};
  CHECK(after_step(rule, 1, 0x1.fffffep0f, 0.f, state) < 0x1.fffffep0f);
}

TEST_CASE("AdamW leaves zeros alone and names its hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::AdamW{}));
  zero::AdamW const rule{
      .lr = 0.5f, .beta1 = 0.25, .beta2 = 0.75, .eps = 0.125f, .weight_decay = 2.f};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "beta1") == 0.25);
  CHECK(field(rule, "beta2") == 0.75);
  CHECK(field(rule, "eps") == 0.125);
  CHECK(field(zero::AdamW{.maximize = true}, "maximize") == 1.);
  CHECK(field(rule, "weight_decay") == 2.);
}

}  // namespace adamw_test
