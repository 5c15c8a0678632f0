#include "rule_reference.hpp"
#include <zero/rule/adamw.hpp>
#include <zero/rule/amsgrad.hpp>

#include <doctest/doctest.h>

#include <cmath>

namespace amsgrad_test {
namespace {

/// torch.optim.AdamW's formula with amsgrad in fp64, or torch.optim.Adam's.
auto reference(zero::AmsGrad const& rule, double lr_scale = 1., double wd_scale = 1.) {
  return [=](long t, double& p, double g, double* state) {
    double const lr = static_cast<double>(rule.lr) * lr_scale;
    double const decay = static_cast<double>(rule.weight_decay) * wd_scale;
    g = rule.maximize ? -g : g;
    if (rule.decoupled) {
      p -= lr * decay * p;
    } else {
      g += decay * p;
    }
    state[0] = rule.beta1 * state[0] + (1. - rule.beta1) * g;
    state[1] = rule.beta2 * state[1] + (1. - rule.beta2) * g * g;
    state[2] = std::fmax(state[2], state[1]);
    double const mean = state[0] / (1. - std::pow(rule.beta1, t));
    double const squares = state[2] / (1. - std::pow(rule.beta2, t));
    p -= lr * mean / (std::sqrt(squares) + static_cast<double>(rule.eps));
  };
}

}  // namespace

TEST_CASE("AmsGrad follows its formula in fp64") {
  Problem const problem;
  for (bool const decoupled : {true, false}) {
    for (bool const maximize : {false, true}) {
      // Means that forget soon, so that the largest is not the last.
      zero::AmsGrad const rule{.lr = 2e-3f,
                               .beta2 = 0.75,
                               .eps = 1e-6f,
                               .weight_decay = 0.1f,
                               .decoupled = decoupled,
                               .maximize = maximize};
      CHECK(worst_ulps(rule, reference(rule), problem) <= 40.);
      CHECK(worst_ulps(rule, reference(rule, 0.5, 2.), problem, 0.5f, 2.f) <= 40.);
    }
  }
}

TEST_CASE("a step does not grow when gradients shrink") {
  zero::AmsGrad const rule{.lr = 1.f, .beta1 = 0., .beta2 = 0.5, .eps = 0.f, .weight_decay = 0.f};
  float state[3] = {};
  after_step(rule, 1, 0.f, 4.f, state);
  CHECK(state[2] == 8.f);
  // v = 4 + 0.5, w = 8; 1 / √(8 / 0.75).
  CHECK(after_step(rule, 2, 0.f, 1.f, state) == doctest::Approx(-std::sqrt(0.75 / 8.)));
  CHECK(state[1] == 4.5f);
  CHECK(state[2] == 8.f);
}

TEST_CASE("AmsGrad leaves zeros alone and names its hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::AmsGrad{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(zero::AmsGrad{.weight_decay = 0.1f, .decoupled = false}));
  zero::AmsGrad const rule{.lr = 0.5f,
                           .beta1 = 0.25,
                           .beta2 = 0.75,
                           .eps = 0.125f,
                           .weight_decay = 2.f,
                           .decoupled = false,
                           .maximize = true};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "beta1") == 0.25);
  CHECK(field(rule, "beta2") == 0.75);
  CHECK(field(rule, "eps") == 0.125);
  CHECK(field(rule, "weight_decay") == 2.);
  CHECK(field(rule, "decoupled") == 0.);
  CHECK(field(rule, "maximize") == 1.);
}

}  // namespace amsgrad_test
