#include "harness.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace fp64_test {
namespace {

/// The toy model trained in fp64 from the definitions: one mean over all micro-batches, one formula
/// a rule. Shares no code with library or reference but the data.
class Fp64 {
 public:
  explicit Fp64(toy::Run const& run) : run_(run), model_(toy::model()) {
    for (std::size_t t = 0; t < model_.size(); ++t) {
      std::size_t const count = owns(t) ? zero::element_count(model_[t]) : 0;
      std::vector<double> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = double{toy::initial_value(t, i)};
      parameters.push_back(values);
      first_.emplace_back(count, 0.);
      second_.emplace_back(count, 0.);
    }
  }

  void train(zero::Sgd const& rule) {
    for (long step = 0; step < run_.steps; ++step) {
      auto const gradients = mean_gradients(step);
      for_each_element([&](std::size_t t, std::size_t i, double& p) {
        double const decay = double{rule.weight_decay} * double{model_[t].weight_decay};
        double const g = gradients[t][i] + decay * p;
        double& m = first_[t][i];
        m = double{rule.momentum} * m + g;
        p -= double{rule.lr} * double{model_[t].learning_rate} * m;
      });
    }
  }

  void train(zero::AdamW const& rule) {
    for (long step = 0; step < run_.steps; ++step) {
      auto const gradients = mean_gradients(step);
      double const correct1 = 1. - std::pow(rule.beta1, double(step + 1));
      double const correct2 = 1. - std::pow(rule.beta2, double(step + 1));
      for_each_element([&](std::size_t t, std::size_t i, double& p) {
        double const rate = double{rule.lr} * double{model_[t].learning_rate};
        double const g = gradients[t][i];
        p -= rate * double{rule.weight_decay} * double{model_[t].weight_decay} * p;
        double& m = first_[t][i];
        double& v = second_[t][i];
        m = rule.beta1 * m + (1. - rule.beta1) * g;
        v = rule.beta2 * v + (1. - rule.beta2) * g * g;
        p -= rate * (m / correct1) / (std::sqrt(v / correct2) + double{rule.eps});
      });
    }
  }

  std::vector<std::vector<double>> parameters;
  std::vector<double> norms;

 private:
  [[nodiscard]] bool owns(std::size_t t) const {
    return model_[t].tied_to.empty() && !model_[t].frozen;
  }

  template <class Visit>
  void for_each_element(Visit const& visit) {
    for (std::size_t t = 0; t < parameters.size(); ++t) {
      for (std::size_t i = 0; i < parameters[t].size(); ++i) visit(t, i, parameters[t][i]);
    }
  }

  /// Clipped, and with the norm before clipping recorded.
  std::vector<std::vector<double>> mean_gradients(long step) {
    std::vector<std::vector<double>> sums(model_.size());
    for (std::size_t t = 0; t < sums.size(); ++t) sums[t].resize(parameters[t].size());
    double weight = 0.;
    for (int batch = 0; batch < run_.ranks * run_.micro_steps; ++batch) {
      weight += run_.weight(batch);
      for (std::size_t use = 0; use < model_.size(); ++use) {
        // The only tied tensor is the last one, which shares the first one's memory.
        std::size_t const t = model_[use].tied_to.empty() ? use : 0;
        for (std::size_t i = 0; i < sums[t].size(); ++i) {
          double const target = double{toy::uniform(use, i, 7) - 0.5f};
          double const noise = double{
              toy::uniform(use + 100, i, static_cast<std::uint64_t>(step * 1000 + batch)) - 0.5f};
          sums[t][i] += run_.weight(batch) * (0.5 * (parameters[t][i] - target) + noise);
        }
      }
    }
    double squares = 0.;
    for (auto& tensor : sums) {
      for (double& g : tensor) {
        g /= weight;
        squares += g * g;
      }
    }
    norms.push_back(std::sqrt(squares));
    double const clip = std::min(1., run_.max_norm / norms.back());
    for (auto& tensor : sums) {
      for (double& g : tensor) g *= clip;
    }
    return sums;
  }

  toy::Run run_;
  std::vector<zero::Tensor> model_;
  std::vector<std::vector<double>> first_;
  std::vector<std::vector<double>> second_;
};

/// The largest distance from fp64, in units of the last place of a parameter of size 1.
template <class Result>
double distance_in_ulps(Result const& result, Fp64 const& exact) {
  double largest = 0.;
  for (std::size_t t = 0; t < exact.parameters.size(); ++t) {
    for (std::size_t i = 0; i < exact.parameters[t].size(); ++i) {
      double const distance = std::abs(double{result.master[t][i]} - exact.parameters[t][i]);
      largest = std::max(largest, distance / 0x1p-23);
    }
  }
  return largest;
}

template <class Result>
void check_norms(Result const& result, Fp64 const& exact) {
  REQUIRE(result.norms.size() == exact.norms.size());
  for (std::size_t step = 0; step < exact.norms.size(); ++step) {
    CHECK(result.norms[step] == doctest::Approx(exact.norms[step]).epsilon(1e-6));
  }
}

// SGD is what shows a sum taken for a mean, or a wrong clip: Adam hides any factor.
TEST_CASE("SGD in fp32 stays within 8 ULP of fp64 for 25 steps, and so do the norms") {
  for (bool const weighted : {false, true}) {
    toy::Run const run{
        .ranks = 4, .micro_steps = 2, .bucket_bytes = 5000, .max_norm = 20., .weighted = weighted};
    zero::Sgd const rule{.lr = 0.01f, .weight_decay = 0.1f};
    auto const setup =
        toy::Setup<zero::stage::PosGP, zero::Fp32, zero::Sgd, zero::AccumulateFull>{rule};
    Fp64 exact(run);
    exact.train(rule);
    auto const expected = toy::check_equal(setup, run);
    CHECK(distance_in_ulps(expected, exact) < 8.);
    check_norms(expected, exact);
  }
}

TEST_CASE("AdamW in fp32 stays within 64 ULP of fp64 for 25 steps") {
  toy::Run const run{.ranks = 3, .bucket_bytes = 5000, .max_norm = 20.};
  zero::AdamW const rule{.lr = 0.01f};
  auto const setup = toy::Setup<zero::stage::PosG, zero::Fp32>{rule};
  Fp64 exact(run);
  exact.train(rule);
  auto const expected = toy::reference(setup, run);
  CHECK(distance_in_ulps(expected, exact) < 64.);
  check_norms(expected, exact);
}

}  // namespace
}  // namespace fp64_test
