#include "rule_reference.hpp"
#include <zero/rule/adagrad.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace adagrad_test {
namespace {

/// torch.optim.Adagrad's formula in fp64.
auto reference(zero::Adagrad const& rule, double lr_scale = 1., double wd_scale = 1.) {
  return [=](long t, double& p, double g, double* state) {
    g = (rule.maximize ? -g : g) + static_cast<double>(rule.weight_decay) * wd_scale * p;
    double const slowdown = 1. + static_cast<double>(t - 1) * static_cast<double>(rule.lr_decay);
    state[0] += g * g;
    p -= static_cast<double>(rule.lr) * lr_scale / slowdown * g /
         (std::sqrt(static_cast<double>(rule.initial_accumulator_value) + state[0]) +
          static_cast<double>(rule.eps));
  };
}

}  // namespace

TEST_CASE("Adagrad follows its formula in fp64") {
  Problem const problem;
  zero::Adagrad const plain{};
  CHECK(worst_ulps(plain, reference(plain), problem) <= 20.);
  zero::Adagrad const decayed{.lr = 2e-2f, .lr_decay = 0.1f, .weight_decay = 0.3f, .eps = 1e-6f};
  CHECK(worst_ulps(decayed, reference(decayed), problem) <= 20.);
  CHECK(worst_ulps(decayed, reference(decayed, 0.5, 2.), problem, 0.5f, 2.f) <= 20.);
}

TEST_CASE("Adagrad climbs, and starts from an accumulator that is not empty") {
  Problem const problem;
  zero::Adagrad const rule{.initial_accumulator_value = 0.25f, .maximize = true};
  CHECK(worst_ulps(rule, reference(rule), problem) <= 20.);
  float state[1] = {};
  zero::Adagrad const full{.lr = 0.5f, .eps = 0.f, .initial_accumulator_value = 16.f};
  CHECK(after_step(full, 1, 1.f, 3.f, state) == doctest::Approx(0.7f));  // 1 - 0.5 · 3 / 5
  CHECK(field(full, "initial_accumulator_value") == 16.);
  CHECK(field(rule, "maximize") == 1.);
}

TEST_CASE("steps computed by hand") {
  zero::Adagrad const rule{.lr = 0.5f, .eps = 0.f};
  float state[1] = {};
  CHECK(after_step(rule, 1, 1.f, 3.f, state) == 0.5f);
  CHECK(state[0] == 9.f);
  CHECK(after_step(rule, 2, 0.5f, 4.f, state) == doctest::Approx(0.1f));  // 0.5 - 0.5 · 4 / 5
  CHECK(state[0] == 25.f);
}

TEST_CASE("the learning rate decays with the step") {
  zero::Adagrad const rule{.lr = 1.f, .lr_decay = 0.5f};
  CHECK(rule.scalars(1, 1.f, 1.f, 1.f).learning_rate == 1.f);
  CHECK(rule.scalars(3, 1.f, 1.f, 1.f).learning_rate == 0.5f);
}

TEST_CASE("Adagrad leaves zeros alone and names its hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::Adagrad{.weight_decay = 0.1f}));
  zero::Adagrad const rule{.lr = 0.5f, .lr_decay = 0.25f, .weight_decay = 2.f, .eps = 0.125f};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "lr_decay") == 0.25);
  CHECK(field(rule, "weight_decay") == 2.);
  CHECK(field(rule, "eps") == 0.125);
}

}  // namespace adagrad_test
