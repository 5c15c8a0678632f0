/// How far the reference, and so the library, is from a training in fp64.
#include "differential/case.hpp"
#include "differential/reference.hpp"
#include "support/test.hpp"

namespace fp64_test {
namespace {

using namespace differential;
using Tensors = std::vector<std::vector<double>>;

/// Trains from the definitions: one mean over all micro-batches, one formula a rule.
class Fp64 {
 public:
  explicit Fp64(Case const& test) : test_(test), parameters(test.tensors.size()) {
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      if (test.storage(t) != t || !test.trained(t)) continue;
      for (std::size_t i = 0; i < test.tensors[t].count; ++i) {
        parameters[t].push_back(double{value(test, 0, t, i)});
      }
    }
    first_ = second_ = parameters;
    for (auto* const state : {&first_, &second_}) {
      for (auto& tensor : *state) std::fill(tensor.begin(), tensor.end(), 0.);
    }
  }

  /// @returns the norm before clipping
  double step(int number) {
    StepPlan const plan = plan_step(test_, number);
    Tensors sums;
    for (auto const& tensor : parameters) sums.emplace_back(tensor.size(), 0.);
    double weight = 0.;
    for (int rank = 0; rank < test_.ranks; ++rank) {
      for (int micro = 0; micro < plan.passes(); ++micro) {
        weight += plan_pass(test_, plan, micro, rank).weight;
        for (std::size_t t = 0; t < sums.size(); ++t) {
          auto& to = sums[test_.storage(t)];
          Gradient const gradient(test_, plan, micro, rank, t, 1);
          for (std::size_t i = 0; i < to.size(); ++i) to[i] += double{gradient(i)};
        }
      }
    }
    double squares = 0.;
    for (auto const& tensor : sums) {
      for (double const g : tensor) squares += g * g / (weight * weight);
    }
    double const norm = std::sqrt(squares);
    if (weight == 0.) return norm;
    bool const clips = plan.max_norm && norm > *plan.max_norm;
    double const factor = (clips ? *plan.max_norm / norm : plan.scale) / weight;
    ++steps_;
    for (std::size_t t = 0; t < sums.size(); ++t) {
      double const rate = double{plan.learning_rate.value_or(test_.hyper.lr)} *
                          double{test_.tensors[t].learning_rate};
      for (std::size_t i = 0; i < sums[t].size(); ++i) update(t, i, rate, sums[t][i] * factor);
    }
    return norm;
  }

 private:
  void update(std::size_t t, std::size_t i, double rate, double g) {
    Hyper const& hyper = test_.hyper;
    double const decay = double{hyper.weight_decay} * double{test_.tensors[t].weight_decay};
    double& p = parameters[t][i];
    double& m = first_[t][i];
    double& v = second_[t][i];
    if (test_.policies.rule == Rule::sgd) {
      g += decay * p;
      m = double{hyper.momentum} * m + g;
      p -= rate * (hyper.nesterov ? g + double{hyper.momentum} * m : m);
      return;
    }
    p -= rate * decay * p;
    m = hyper.beta1 * m + (1. - hyper.beta1) * g;
    v = hyper.beta2 * v + (1. - hyper.beta2) * g * g;
    double const mean = m / (1. - std::pow(hyper.beta1, steps_));
    double const variance = v / (1. - std::pow(hyper.beta2, steps_));
    p -= rate * mean / (std::sqrt(variance) + double{hyper.eps});
  }

  Case const& test_;
  Tensors first_;
  Tensors second_;
  int steps_ = 0;

 public:
  Tensors parameters;
};

/// The largest distance from fp64, in units of the last place of the largest parameter.
double distance_in_ulps(Rule rule, std::uint64_t seed) {
  Case test = draw(seed, {Stage::pos_gp, Number::fp32, rule, Accumulation::full}, 4);
  test.steps = 25;
  test.features = micro_steps | clipping;
  test.hyper = {.lr = 0.01f,
                .weight_decay = rule == Rule::sgd ? 0.1f : 0.01f,
                .momentum = 0.9f,
                .lr_decay = 0.f,
                .eps = 1e-8f,
                .beta1 = 0.9,
                .beta2 = 0.999,
                .nesterov = seed % 2 == 0};
  for (TensorCase& tensor : test.tensors) tensor.magnitude = 1.f;
  auto const expected = expect(test);
  Fp64 exact(test);
  for (int step = 0; step < test.steps; ++step) {
    Report const& report = expected[static_cast<std::size_t>(step)].report;
    double const norm = exact.step(step);
    if (report.weight != 0.) CHECK(report.grad_norm == doctest::Approx(norm).epsilon(1e-6));
  }
  double distance = 0.;
  double largest = 0.;
  for (std::size_t t = 0; t < test.tensors.size(); ++t) {
    for (std::size_t i = 0; i < exact.parameters[t].size(); ++i) {
      double const wanted = exact.parameters[t][i];
      double const found = double{expected.back().after.masters[t][i]};
      distance = std::max(distance, std::abs(found - wanted));
      largest = std::max(largest, std::abs(wanted));
    }
  }
  return distance == 0. ? 0. : distance / largest / 0x1p-23;
}

// SGD is what shows a sum taken for a mean, or a wrong clip: Adam hides any factor.
TEST_CASE("fp32 stays close to fp64 for 25 steps: SGD within 8 ULP, AdamW within 64") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    CHECK(distance_in_ulps(Rule::sgd, seed) < 8.);
    CHECK(distance_in_ulps(Rule::adamw, seed) < 64.);
  }
}

}  // namespace
}  // namespace fp64_test
