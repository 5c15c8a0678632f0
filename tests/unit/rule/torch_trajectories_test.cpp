/// 200 steps of every rule that torch has: no further from torch in fp64 than torch is in fp32.
/// Both distances are a random walk of roundings: of 64 elements they are known to a tenth.
#include "torch_trajectories.hpp"

#include <zero/kernel/update.hpp>
#include <zero/rule/adagrad.hpp>
#include <zero/rule/adam.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/rule/amsgrad.hpp>
#include <zero/rule/nadam.hpp>
#include <zero/rule/rmsprop.hpp>
#include <zero/rule/sgd.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace torch_trajectories_test {
namespace {

namespace torch = torch_trajectories;
constexpr std::size_t elements = 64;
constexpr float lr = 0x1p-6f;
constexpr float eps = 0x1p-20f;
constexpr float decay = 0x1p-5f;

// As in torch_trajectories.py.
double number(std::size_t element, long step) {
  std::uint64_t const key = 1000 * element + static_cast<std::uint64_t>(step) + 1;
  std::uint64_t bits = 6364136223846793005U * key + 1442695040888963407U;
  bits ^= bits >> 29U;
  bits *= 0xBF58476D1CE4E5B9U;
  return (static_cast<double>((bits >> 40U) % 2049) - 1024.) / 1024.;
}

template <class Rule>
double distance(Rule const& rule, torch::Trajectory const& exact) {
  std::array<float, elements> parameters{};
  std::array<float, elements> gradients{};
  std::array<std::array<float, elements>, Rule::states.size()> states{};
  for (std::size_t i = 0; i < elements; ++i) parameters[i] = static_cast<float>(2. * number(i, 0));
  zero::kernel::UpdateArrays<float, float, float, float, Rule::states.size()> arrays;
  arrays.master = parameters.data();
  arrays.gradient = gradients.data();
  for (std::size_t k = 0; k < states.size(); ++k) arrays.state[k] = states[k].data();
  arrays.count = elements;
  for (long step = 1; step <= 200; ++step) {
    for (std::size_t i = 0; i < elements; ++i) {
      double const slope = (number(i, step) + 0.25) * std::ldexp(1., -static_cast<int>(i % 8));
      gradients[i] = static_cast<float>(slope);
    }
    zero::kernel::update(rule, rule.scalars(step, rule.lr, 1.f, 1.f), 1.f, arrays);
  }
  double squares = 0.;
  for (std::size_t i = 0; i < elements; ++i) {
    double const difference = static_cast<double>(parameters[i]) - exact.final[i];
    squares += difference * difference;
  }
  return std::sqrt(squares);
}

#define ZERO_CHECK_RULE(name, ...) \
  CHECK_MESSAGE(distance(__VA_ARGS__, torch::name) <= 1.1 * torch::name.distance, #name)

TEST_CASE("rules are no further from torch in fp64 than torch in fp32") {
  using zero::RmsProp;
  using zero::Sgd;
  ZERO_CHECK_RULE(sgd, Sgd{.lr = lr, .momentum = 0.875f, .weight_decay = decay});
  ZERO_CHECK_RULE(sgd_nesterov,
                  Sgd{.lr = lr, .momentum = 0.875f, .nesterov = true, .maximize = true});
  ZERO_CHECK_RULE(sgd_dampening,
                  Sgd{.lr = lr, .momentum = 0.875f, .weight_decay = decay, .dampening = 0.25f});
  ZERO_CHECK_RULE(plain_sgd, zero::PlainSgd{.lr = lr, .weight_decay = decay, .maximize = true});
  ZERO_CHECK_RULE(adam, zero::Adam{.lr = lr, .eps = eps, .weight_decay = decay});
  ZERO_CHECK_RULE(adam_maximize, zero::Adam{.lr = lr, .eps = eps, .maximize = true});
  ZERO_CHECK_RULE(adamw, zero::AdamW{.lr = lr, .eps = eps, .weight_decay = decay});
  ZERO_CHECK_RULE(adamw_maximize,
                  zero::AdamW{.lr = lr, .eps = eps, .weight_decay = decay, .maximize = true});
  ZERO_CHECK_RULE(amsgrad, zero::AmsGrad{.lr = lr, .eps = eps, .weight_decay = decay});
  ZERO_CHECK_RULE(
      amsgrad_coupled,
      zero::AmsGrad{
          .lr = lr, .eps = eps, .weight_decay = decay, .decoupled = false, .maximize = true});
  ZERO_CHECK_RULE(adagrad,
                  zero::Adagrad{.lr = lr, .lr_decay = 0.125f, .weight_decay = decay, .eps = eps});
  ZERO_CHECK_RULE(
      adagrad_initial,
      zero::Adagrad{.lr = lr, .eps = eps, .initial_accumulator_value = 0.5f, .maximize = true});
  ZERO_CHECK_RULE(rmsprop, RmsProp<>{.lr = lr, .eps = eps, .weight_decay = decay});
  ZERO_CHECK_RULE(rmsprop_momentum,
                  RmsProp<true>{.lr = lr, .eps = eps, .momentum = 0.875f, .maximize = true});
  ZERO_CHECK_RULE(rmsprop_centered,
                  RmsProp<false, true>{.lr = lr, .eps = eps, .weight_decay = decay});
  ZERO_CHECK_RULE(rmsprop_both, RmsProp<true, true>{.lr = lr, .eps = eps, .momentum = 0.875f});
  ZERO_CHECK_RULE(nadam, zero::NAdam{.lr = lr, .eps = eps});
  ZERO_CHECK_RULE(
      nadam_decay,
      zero::NAdam{.lr = lr, .eps = eps, .weight_decay = decay, .momentum_decay = 0.03125});
}

}  // namespace
}  // namespace torch_trajectories_test
