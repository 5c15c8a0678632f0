#pragma once

#include <zero/kernel/update.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <random>
#include <string_view>
#include <vector>

/// Parameters and gradients of many scales, the same for every rule.
struct Problem {
  explicit Problem(std::size_t count = 501, int steps = 60) {
    std::mt19937 random(17);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-12, 3);
    for (std::size_t i = 0; i < count; ++i) {
      scale.push_back(std::ldexp(1.f, exponent(random)));
      parameters.push_back(normal(random));
    }
    for (int t = 0; t < steps; ++t) {
      gradients.emplace_back();
      for (std::size_t i = 0; i < count; ++i) {
        // A drift, so that means do not cancel, and a few exact zeros.
        bool const zero = random() % 10 == 0;
        gradients.back().push_back(zero ? 0.f : (normal(random) + 0.5f) * scale[i]);
      }
    }
  }

  std::vector<float> scale;
  std::vector<float> parameters;
  std::vector<std::vector<float>> gradients;
};

/// Units in the last place of fp32 between `value` and `expected`, measured at the largest number
/// the element has passed through: what an accumulation can be held to.
inline double ulps(float value, double expected, double magnitude) {
  double const unit = std::ldexp(1., std::ilogb(magnitude) - 23);
  return std::fabs(static_cast<double>(value) - expected) / unit;
}

/// Runs `rule` in the host kernel and `reference` in fp64 over all steps; the largest error of a
/// parameter in ULPs. `reference(t, p, g, state)` updates one element at step t, from 1.
template <class Rule, class Reference>
double worst_ulps(Rule const& rule,
                  Reference const& reference,
                  Problem const& problem,
                  float lr_scale = 1.f,
                  float wd_scale = 1.f) {
  constexpr auto states = Rule::states.size();
  std::size_t const count = problem.parameters.size();
  auto parameters = problem.parameters;
  std::vector<double> exact(parameters.begin(), parameters.end());
  std::vector<double> magnitude(count);
  std::array<std::vector<float>, states> state;
  for (auto& s : state) s.assign(count, 0.f);
  std::vector<std::array<double, states + 1>> exact_state(count);
  double worst = 0.;
  long t = 0;
  for (auto const& gradient : problem.gradients) {
    ++t;
    zero::kernel::UpdateArrays<float, float, float, float, states> arrays;
    arrays.master = parameters.data();
    arrays.gradient = gradient.data();
    for (std::size_t k = 0; k < states; ++k) arrays.state[k] = state[k].data();
    arrays.count = count;
    zero::kernel::update(rule, rule.scalars(t, rule.lr, lr_scale, wd_scale), 0.25f, arrays);
    for (std::size_t i = 0; i < count; ++i) {
      magnitude[i] = std::fmax(magnitude[i], std::fabs(exact[i]));
      reference(t, exact[i], 0.25 * static_cast<double>(gradient[i]), exact_state[i].data());
      worst = std::fmax(worst, ulps(parameters[i], exact[i], magnitude[i]));
    }
  }
  return worst;
}

/// One element through one step; what a test computes by hand.
template <class Rule>
float after_step(Rule const& rule,
                 long t,
                 float p,
                 float g,
                 float* state,
                 float lr_scale = 1.f,
                 float wd = 1.f) {
  rule.template update<float>(rule.scalars(t, rule.lr, lr_scale, wd), p, g, state);
  return p;
}

/// The value of the hyper-parameter `name`, or NaN if the rule does not list it.
template <class Rule>
double field(Rule const& rule, std::string_view name) {
  for (auto const& f : rule.fields()) {
    if (f.name == name) return f.value;
  }
  return std::nan("");
}

/// Zeros must stay zeros: the padding between tensors is made of them.
template <class Rule>
bool zeros_stay_zeros(Rule const& rule) {
  float p = 0.f;
  std::array<float, Rule::states.size() + 1> state{};
  for (long t = 1; t <= 10; ++t) {
    rule.template update<float>(rule.scalars(t, rule.lr, 1.f, 1.f), p, 0.f, state.data());
    for (float s : state) {
      if (s != 0.f) return false;
    }
    if (p != 0.f || std::signbit(p)) return false;
  }
  return true;
}
