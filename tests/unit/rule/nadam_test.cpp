#include "rule_reference.hpp"
#include <zero/rule/nadam.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <memory>

namespace nadam_test {
namespace {

/// torch.optim.NAdam's formula in fp64, with the product of all factors as torch keeps it.
auto reference(zero::NAdam const& rule, double lr_scale = 1., double wd_scale = 1.) {
  struct Product {
    long t = 0;
    double value = 1.;
  };
  return [=, product = std::make_shared<Product>()](long t, double& p, double g, double* state) {
    auto const mu = [&](long i) {
      double const power = std::pow(0.96, static_cast<double>(i) * rule.momentum_decay);
      return rule.beta1 * (1. - 0.5 * power);
    };
    if (product->t != t) *product = {t, product->value * mu(t)};
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
    double const root =
        std::sqrt(state[1] / (1. - std::pow(rule.beta2, t))) + static_cast<double>(rule.eps);
    p -= lr * (1. - mu(t)) / (1. - product->value) * g / root;
    p -= lr * mu(t + 1) / (1. - product->value * mu(t + 1)) * state[0] / root;
  };
}

}  // namespace

TEST_CASE("NAdam follows its formula in fp64") {
  Problem const problem;
  zero::NAdam const plain{};
  CHECK(worst_ulps(plain, reference(plain), problem) <= 40.);
  for (bool const decoupled : {false, true}) {
    for (double const momentum_decay : {0., 0.5, 40.}) {
      zero::NAdam const rule{.lr = 1e-3f,
                             .beta1 = 0.8,
                             .beta2 = 0.95,
                             .eps = 1e-6f,
                             .weight_decay = 0.1f,
                             .momentum_decay = momentum_decay,
                             .decoupled = decoupled,
                             .maximize = decoupled};
      CHECK(worst_ulps(rule, reference(rule), problem) <= 40.);
      CHECK(worst_ulps(rule, reference(rule, 0.5, 2.), problem, 0.5f, 2.f) <= 40.);
    }
  }
}

TEST_CASE("NAdam's momentum is what β₁ says in the end, and any step may be asked for") {
  zero::NAdam const rule{.lr = 1.f, .beta1 = 0.5, .beta2 = 0., .momentum_decay = 1.};
  // 0.96^1000000 is nothing: (1 − ½) of the gradient and ½ of its mean, whose product is nothing.
  auto const late = rule.scalars(1000000, 1.f, 1.f, 1.f);
  CHECK(late.extra[4] == 0.5f);
  CHECK(late.extra[6] == 0.5f);
}

TEST_CASE("NAdam leaves zeros alone and names its hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::NAdam{.weight_decay = 0.1f}));
  zero::NAdam const rule{.lr = 0.5f,
                         .beta1 = 0.25,
                         .beta2 = 0.75,
                         .eps = 0.125f,
                         .weight_decay = 2.f,
                         .momentum_decay = 0.25,
                         .decoupled = true,
                         .maximize = true};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "beta1") == 0.25);
  CHECK(field(rule, "beta2") == 0.75);
  CHECK(field(rule, "eps") == 0.125);
  CHECK(field(rule, "weight_decay") == 2.);
  CHECK(field(rule, "momentum_decay") == 0.25);
  CHECK(field(rule, "decoupled") == 1.);
  CHECK(field(rule, "maximize") == 1.);
}

}  // namespace nadam_test
