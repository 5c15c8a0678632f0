#include "rule_reference.hpp"
#include <zero/rule/sgd.hpp>

#include <doctest/doctest.h>

namespace sgd_test {
namespace {

/// torch.optim.SGD's formula in fp64.
auto reference(zero::Sgd const& rule, double lr_scale = 1., double wd_scale = 1.) {
  return [=](long t, double& p, double g, double* state) {
    double const momentum = static_cast<double>(rule.momentum);
    g = (rule.maximize ? -g : g) + static_cast<double>(rule.weight_decay) * wd_scale * p;
    double const share = t == 1 ? 1. : 1. - static_cast<double>(rule.dampening);
    state[0] = momentum * state[0] + share * g;
    g = rule.nesterov ? g + momentum * state[0] : state[0];
    p -= static_cast<double>(rule.lr) * lr_scale * g;
  };
}

}  // namespace

TEST_CASE("Sgd follows its formula in fp64") {
  Problem const problem;
  for (bool nesterov : {false, true}) {
    zero::Sgd const plain{.lr = 1e-2f, .nesterov = nesterov};
    CHECK(worst_ulps(plain, reference(plain), problem) <= 20.);
    zero::Sgd const decayed{
        .lr = 2e-2f, .momentum = 0.75f, .weight_decay = 0.2f, .nesterov = nesterov};
    CHECK(worst_ulps(decayed, reference(decayed), problem) <= 20.);
    CHECK(worst_ulps(decayed, reference(decayed, 0.5, 3.), problem, 0.5f, 3.f) <= 20.);
  }
}

TEST_CASE("Sgd climbs, and damps what is not the first gradient") {
  Problem const problem;
  zero::Sgd const rule{
      .lr = 2e-2f, .momentum = 0.75f, .weight_decay = 0.2f, .dampening = 0.5f, .maximize = true};
  CHECK(worst_ulps(rule, reference(rule), problem) <= 20.);
  float state[1] = {};
  zero::Sgd const damped{.lr = 0.5f, .momentum = 0.5f, .dampening = 0.25f};
  CHECK(after_step(damped, 1, 1.f, 1.f, state) == 0.5f);
  CHECK(after_step(damped, 2, 0.5f, 1.f, state) == -0.125f);  // m = 0.5 + 0.75
  CHECK(after_step(zero::PlainSgd{.lr = 0.5f, .maximize = true}, 1, 2.f, 1.f, nullptr) == 2.5f);
  CHECK(field(damped, "dampening") == 0.25);
  CHECK(field(rule, "maximize") == 1.);
  CHECK(field(zero::PlainSgd{.maximize = true}, "maximize") == 1.);
}

TEST_CASE("PlainSgd is Sgd without momentum") {
  Problem const problem;
  zero::PlainSgd const rule{.lr = 2e-2f, .weight_decay = 0.1f};
  auto const expected = [&](long, double& p, double g, double*) {
    p -= static_cast<double>(rule.lr) * (g + static_cast<double>(rule.weight_decay) * p);
  };
  CHECK(worst_ulps(rule, expected, problem) <= 20.);
  static_assert(zero::PlainSgd::states.empty());
}

TEST_CASE("steps computed by hand") {
  float state[1] = {};
  zero::Sgd const heavy{.lr = 0.5f, .momentum = 0.5f};
  CHECK(after_step(heavy, 1, 1.f, 1.f, state) == 0.5f);
  CHECK(state[0] == 1.f);
  CHECK(after_step(heavy, 2, 0.5f, 1.f, state) == -0.25f);  // m = 1.5
  CHECK(state[0] == 1.5f);

  state[0] = 0.f;
  zero::Sgd const nesterov{.lr = 0.5f, .momentum = 0.5f, .nesterov = true};
  CHECK(after_step(nesterov, 1, 1.f, 1.f, state) == 0.25f);      // 1 + 0.5 · 1
  CHECK(after_step(nesterov, 2, 0.25f, 1.f, state) == -0.625f);  // 1 + 0.5 · 1.5

  zero::PlainSgd const plain{.lr = 0.5f, .weight_decay = 1.f};
  CHECK(after_step(plain, 1, 2.f, 1.f, nullptr) == 0.5f);
  CHECK(after_step(plain, 1, 2.f, 1.f, nullptr, 0.5f, 1.f) == 1.25f);
  CHECK(after_step(plain, 1, 2.f, 1.f, nullptr, 1.f, 0.f) == 1.5f);
}

TEST_CASE("a gradient twice as large is a step twice as large") {
  // Adam hides a sum for a mean; this rule must not.
  zero::PlainSgd const rule{.lr = 0.5f};
  CHECK(after_step(rule, 1, 0.f, 2.f, nullptr) == 2.f * after_step(rule, 1, 0.f, 1.f, nullptr));
}

TEST_CASE("Sgd and PlainSgd leave zeros alone and name their hyper-parameters") {
  CHECK(zeros_stay_zeros(zero::Sgd{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(zero::Sgd{.weight_decay = 0.1f, .nesterov = true}));
  CHECK(zeros_stay_zeros(zero::PlainSgd{.weight_decay = 0.1f}));
  zero::Sgd const rule{.lr = 0.5f, .momentum = 0.25f, .weight_decay = 2.f, .nesterov = true};
  CHECK(field(rule, "lr") == 0.5);
  CHECK(field(rule, "momentum") == 0.25);
  CHECK(field(rule, "weight_decay") == 2.);
  CHECK(field(rule, "nesterov") == 1.);
  CHECK(field(zero::PlainSgd{.lr = 3.f, .weight_decay = 4.f}, "lr") == 3.);
  CHECK(field(zero::PlainSgd{.lr = 3.f, .weight_decay = 4.f}, "weight_decay") == 4.);
}

}  // namespace sgd_test
