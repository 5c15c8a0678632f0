/// Every rule does what its formula says, which is torch's, where torch has it.
#include "support/test.hpp"
#include "torch_trajectories.hpp"
#include <zero/kernel/update.hpp>
#include <zero/rule/adagrad.hpp>
#include <zero/rule/adam.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/rule/amsgrad.hpp>
#include <zero/rule/lamb.hpp>
#include <zero/rule/lars.hpp>
#include <zero/rule/lion.hpp>
#include <zero/rule/nadam.hpp>
#include <zero/rule/rmsprop.hpp>
#include <zero/rule/sgd.hpp>
#include <zero/rule/trust_ratio.hpp>

namespace rules_test {
namespace {

using zero::Adagrad;
using zero::Adam;
using zero::AdamW;
using zero::AmsGrad;
using zero::Lamb;
using zero::Lars;
using zero::Lion;
using zero::NAdam;
using zero::PlainSgd;
using zero::RmsProp;
using zero::Sgd;

/// What the formulas in fp64 know of a step: its number from 1, rate and decay with their scales.
struct Step {
  long t;
  double lr;
  double decay;
};

// The formulas of torch.optim. Each updates one element; `s` is its state, at first zeros.

void follow(Sgd const& rule, Step step, double& p, double g, double* s) {
  auto const momentum = static_cast<double>(rule.momentum);
  g = (rule.maximize ? -g : g) + step.decay * p;
  double const share = step.t == 1 ? 1. : 1. - static_cast<double>(rule.dampening);
  s[0] = momentum * s[0] + share * g;
  p -= step.lr * (rule.nesterov ? g + momentum * s[0] : s[0]);
}

void follow(PlainSgd const& rule, Step step, double& p, double g, double*) {
  p -= step.lr * ((rule.maximize ? -g : g) + step.decay * p);
}

void follow(Adagrad const& rule, Step step, double& p, double g, double* s) {
  g = (rule.maximize ? -g : g) + step.decay * p;
  double const slowdown = 1. + static_cast<double>(step.t - 1) * static_cast<double>(rule.lr_decay);
  s[0] += g * g;
  p -= step.lr / slowdown * g /
       (std::sqrt(static_cast<double>(rule.initial_accumulator_value) + s[0]) +
        static_cast<double>(rule.eps));
}

/// What all kinds of Adam begin with. Returns the gradient with its decay.
template <class Rule>
double moments(Rule const& rule, bool decoupled, Step step, double& p, double g, double* s) {
  g = rule.maximize ? -g : g;
  if (decoupled) {
    p -= step.lr * step.decay * p;
  } else {
    g += step.decay * p;
  }
  s[0] = rule.beta1 * s[0] + (1. - rule.beta1) * g;
  s[1] = rule.beta2 * s[1] + (1. - rule.beta2) * g * g;
  return g;
}

template <class Rule>
double root(Rule const& rule, Step step, double squares) {
  double const corrected = squares / (1. - std::pow(rule.beta2, step.t));
  return std::sqrt(corrected) + static_cast<double>(rule.eps);
}

template <class Rule>
void follow_adam(Rule const& rule, bool decoupled, Step step, double& p, double g, double* s) {
  moments(rule, decoupled, step, p, g, s);
  bool const largest = Rule::states.size() == 3;
  if (largest) s[2] = std::fmax(s[2], s[1]);
  p -= step.lr * s[0] / (1. - std::pow(rule.beta1, step.t)) / root(rule, step, s[largest ? 2 : 1]);
}
void follow(Adam const& rule, Step step, double& p, double g, double* s) {
  if (!rule.eps_hat) return follow_adam(rule, false, step, p, g, s);
  moments(rule, false, step, p, g, s);
  double const alpha =
      step.lr * std::sqrt(1. - std::pow(rule.beta2, step.t)) / (1. - std::pow(rule.beta1, step.t));
  p -= alpha * s[0] / (std::sqrt(s[1]) + rule.eps);
}
void follow(AdamW const& rule, Step step, double& p, double g, double* s) {
  follow_adam(rule, true, step, p, g, s);
}
void follow(AmsGrad const& rule, Step step, double& p, double g, double* s) {
  follow_adam(rule, rule.decoupled, step, p, g, s);
}

void follow(NAdam const& rule, Step step, double& p, double g, double* s) {
  auto const mu = [&](long i) {
    double const power = std::pow(0.96, static_cast<double>(i) * rule.momentum_decay);
    return rule.beta1 * (1. - 0.5 * power);
  };
  double& product = s[2];  // as torch keeps it
  product = (step.t == 1 ? 1. : product) * mu(step.t);
  double const next = mu(step.t + 1);
  g = moments(rule, rule.decoupled, step, p, g, s);
  double const denominator = root(rule, step, s[1]);
  p -= step.lr * (1. - mu(step.t)) / (1. - product) * g / denominator;
  p -= step.lr * next / (1. - product * next) * s[0] / denominator;
}

template <bool WithMomentum, bool Centered>
void follow(
    RmsProp<WithMomentum, Centered> const& rule, Step step, double& p, double g, double* s) {
  g = (rule.maximize ? -g : g) + step.decay * p;
  s[0] = rule.alpha * s[0] + (1. - rule.alpha) * g * g;
  double variance = s[0];
  if (Centered) {
    double& mean = s[1 + int{WithMomentum}];
    mean = rule.alpha * mean + (1. - rule.alpha) * g;
    variance -= mean * mean;
  }
  double direction = g / (std::sqrt(std::fmax(variance, 0.)) + static_cast<double>(rule.eps));
  if (WithMomentum) direction = s[1] = static_cast<double>(rule.momentum) * s[1] + direction;
  p -= step.lr * direction;
}

/// The paper's program 1. A direction so close to zero that its sign in fp32 is a matter of
/// rounding would make any comparison meaningless; `nearest_direction` records how close one came.
double nearest_direction = 1.;
void follow(Lion const& rule, Step step, double& p, double g, double* s) {
  double const direction = rule.beta1 * s[0] + (1. - rule.beta1) * g;
  double const size = std::fabs(rule.beta1 * s[0]) + std::fabs(g);
  if (direction != 0.)
    nearest_direction = std::fmin(nearest_direction, std::fabs(direction) / size);
  double const sign = direction > 0. ? 1. : direction < 0. ? -1. : 0.;
  p -= step.lr * (step.decay * p + sign);
  s[0] = rule.beta2 * s[0] + (1. - rule.beta2) * g;
}

struct Problem {
  std::vector<float> parameters;
  std::vector<std::vector<float>> gradients{};  // of each step
  float gradient_scale = 1.f;
};

/// Of many scales, the same for every rule.
Problem make_random_problem() {
  std::mt19937 random(17);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-12, 3);
  Problem problem{.parameters = {}, .gradient_scale = 0.25f};
  std::vector<float> scale;
  for (int i = 0; i < 501; ++i) {
    scale.push_back(std::ldexp(1.f, exponent(random)));
    problem.parameters.push_back(normal(random));
  }
  for (int t = 0; t < 60; ++t) {
    problem.gradients.emplace_back();
    for (float const of_element : scale) {
      // A drift, so that means do not cancel, and a few exact zeros.
      bool const zero = random() % 10 == 0;
      problem.gradients.back().push_back(zero ? 0.f : (normal(random) + 0.5f) * of_element);
    }
  }
  return problem;
}

Problem const& random_problem() {
  static Problem const problem = make_random_problem();
  return problem;
}

/// As in torch_trajectories.py.
Problem torch_problem() {
  auto const number = [](std::size_t element, std::size_t step) {
    std::uint64_t bits = 6364136223846793005U * (1000 * element + step + 1) + 1442695040888963407U;
    bits ^= bits >> 29U;
    bits *= 0xBF58476D1CE4E5B9U;
    return (static_cast<float>((bits >> 40U) % 2049) - 1024.f) / 1024.f;
  };
  Problem problem;
  for (std::size_t i = 0; i < 64; ++i) problem.parameters.push_back(2.f * number(i, 0));
  for (std::size_t step = 1; step <= 200; ++step) {
    problem.gradients.emplace_back();
    for (std::size_t i = 0; i < 64; ++i) {
      float const slope = std::ldexp(number(i, step) + 0.25f, -static_cast<int>(i % 8));
      problem.gradients.back().push_back(slope);
    }
  }
  return problem;
}

struct Outcome {
  std::vector<double> exact;  // parameters in fp64
  double distance;            // of those in fp32: l2 norm
  double worst_ulps;          // the largest error of one at any time
};

/// Plays all steps in the host kernel, and in fp64. ULPs are those of the kernel's type at the
/// largest number an element has passed through: what an accumulation can be held to.
template <class Real = float, class Rule>
Outcome play(Rule const& rule, Problem const& problem, float lr_scale = 1.f, float wd_scale = 1.f) {
  constexpr auto states = Rule::states.size();
  std::size_t const count = problem.parameters.size();
  std::vector<Real> parameters(problem.parameters.begin(), problem.parameters.end());
  std::array<std::vector<Real>, states> state;
  for (auto& s : state) s.assign(count, 0);
  std::vector<std::array<double, 3>> exact_state(count);
  std::vector<double> magnitude(count);
  Outcome outcome{{parameters.begin(), parameters.end()}, 0., 0.};
  Step step{0,
            static_cast<double>(rule.lr) * static_cast<double>(lr_scale),
            static_cast<double>(rule.weight_decay) * static_cast<double>(wd_scale)};
  for (auto const& gradient : problem.gradients) {
    ++step.t;
    zero::kernel::UpdateArrays<Real, Real, float, Real, states> arrays;
    arrays.master = parameters.data();
    arrays.gradient = gradient.data();
    for (std::size_t k = 0; k < states; ++k) arrays.state[k] = state[k].data();
    arrays.count = count;
    auto const scalars =
        rule.scalars(step.t, static_cast<Real>(rule.lr), Real{lr_scale}, Real{wd_scale});
    zero::kernel::update(rule, scalars, problem.gradient_scale, arrays);
    outcome.distance = 0.;
    for (std::size_t i = 0; i < count; ++i) {
      double& exact = outcome.exact[i];
      magnitude[i] = std::fmax(magnitude[i], std::fabs(exact));
      Real const g = Real{problem.gradient_scale} * Real{gradient[i]};
      follow(rule, step, exact, double{g}, exact_state[i].data());
      double const error = std::fabs(static_cast<double>(parameters[i]) - exact);
      double const unit = std::ldexp(
          1.,
          std::ilogb(std::fmax(magnitude[i], 0x1p-126)) - (std::is_same_v<Real, double> ? 52 : 23));
      outcome.worst_ulps = std::fmax(outcome.worst_ulps, error / unit);
      outcome.distance = std::hypot(outcome.distance, error);
    }
  }
  return outcome;
}

/// As they are, and with half the rate and twice the decay.
template <class... Rules>
void check_formulas(double limit, Rules const&... rules) {
  Problem const& problem = random_problem();
  auto const check = [&](auto const& rule) {
    CAPTURE(rule.name);
    CHECK(play(rule, problem).worst_ulps <= limit);
    CHECK(play(rule, problem, 0.5f, 2.f).worst_ulps <= limit);
    // The formula in fp64 rounds as often as the kernel does.
    CHECK(play<double>(rule, problem, 0.5f, 2.f).worst_ulps <= 4. * limit);
  };
  (check(rules), ...);
}

/// No further from torch in fp64 than torch is in fp32. Both distances are a random walk of
/// roundings: of 64 elements they are known to a tenth.
template <class Rule>
void check_torch(Rule const& rule, torch_trajectories::Trajectory const& torch) {
  static Problem const problem = torch_problem();
  Outcome const outcome = play(rule, problem);
  CAPTURE(rule.name);
  CHECK(outcome.distance <= 1.1 * torch.distance);
  double norm = 0.;
  for (double const value : outcome.exact) norm = std::hypot(norm, value);
  CHECK(std::fabs(norm - torch.norm) <= 1e-3 * torch.distance);
  for (std::size_t i = 0; i < 8; ++i) {
    CHECK(std::fabs(outcome.exact[i] - torch.first[i]) <= 1e-3 * torch.distance);
  }
}

/// One element through one step.
template <class Rule>
float after_step(Rule const& rule,
                 long t,
                 float p,
                 float g,
                 float* state,
                 float lr_scale = 1.f,
                 float wd = 1.f) {
  rule.template update<float>(
      rule.scalars(t, static_cast<float>(rule.lr), lr_scale, wd), p, g, state);
  return p;
}

/// Zeros must stay zeros: the padding between tensors is made of them.
template <class Rule>
bool zeros_stay_zeros(Rule const& rule) {
  float p = 0.f;
  std::array<float, Rule::states.size() + 1> state{};
  for (long t = 1; t <= 10; ++t) {
    p = after_step(rule, t, p, 0.f, state.data());
    if (p != 0.f || std::signbit(p)) return false;
    if (std::count(state.begin(), state.end(), 0.f) != std::ssize(state)) return false;
  }
  return true;
}

using Fields = std::vector<std::pair<std::string_view, double>>;

template <class Rule>
Fields fields(Rule const& rule) {
  Fields result;
  for (auto const& field : rule.fields()) result.emplace_back(field.name, field.value);
  return result;
}

}  // namespace

TEST_CASE("rules follow their formulas in fp64") {
  // A rounding or two of p a step, 60 steps, and a little for the step itself.
  check_formulas(20.,
                 Sgd{.lr = 1e-2f},
                 Sgd{.lr = 1e-2f, .nesterov = true},
                 Sgd{.lr = 2e-2f, .momentum = 0.75f, .weight_decay = 0.2f},
                 Sgd{.lr = 2e-2f, .momentum = 0.75f, .weight_decay = 0.2f, .nesterov = true},
                 Sgd{.lr = 2e-2f,
                     .momentum = 0.75f,
                     .weight_decay = 0.2f,
                     .dampening = 0.5f,
                     .maximize = true},
                 PlainSgd{.lr = 2e-2f, .weight_decay = 0.1f},
                 Adagrad{},
                 Adagrad{.lr = 2e-2f, .lr_decay = 0.1f, .weight_decay = 0.3f, .eps = 1e-6f},
                 Adagrad{.initial_accumulator_value = 0.25f, .maximize = true});
  check_formulas(
      20.,
      Adam{},
      Adam{.lr = 3e-3f, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6f, .weight_decay = 0.1f},
      Adam{.lr = 3e-3, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1, .eps_hat = true},
      AdamW{.lr = 3e-3f, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6f, .weight_decay = 5.f});
  CHECK(play(AdamW{}, random_problem()).worst_ulps <= 20.);
  check_formulas(
      40., NAdam{}, Lion{}, Lion{.lr = 3e-3f, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.5f});
  REQUIRE(nearest_direction > 1e-6);
  for (bool const decoupled : {false, true}) {
    for (bool const maximize : {false, true}) {
      // Means that forget soon, so that the largest is not the last.
      check_formulas(40.,
                     AmsGrad{.lr = 2e-3f,
                             .beta2 = 0.75,
                             .eps = 1e-6f,
                             .weight_decay = 0.1f,
                             .decoupled = decoupled,
                             .maximize = maximize});
    }
    for (double const momentum_decay : {0., 0.5, 40.}) {
      check_formulas(40.,
                     NAdam{.lr = 1e-3f,
                           .beta1 = 0.8,
                           .beta2 = 0.95,
                           .eps = 1e-6f,
                           .weight_decay = 0.1f,
                           .momentum_decay = momentum_decay,
                           .decoupled = decoupled,
                           .maximize = decoupled});
    }
  }
  auto const check_rms_prop = [](auto rule, double limit) {
    rule.lr = 2e-3f;
    rule.alpha = 0.875;
    rule.eps = 1e-3f;
    check_formulas(40., rule);
    rule.weight_decay = 0.1f;
    rule.maximize = true;
    if (rule.states[rule.states.size() > 1].name == "momentum_buffer") rule.momentum = 0.75f;
    check_formulas(limit, rule);
  };
  check_rms_prop(RmsProp<>{}, 40.);
  check_rms_prop(RmsProp<true>{}, 40.);
  // A variance is a difference, which has fewer digits than what it is one of.
  check_rms_prop(RmsProp<false, true>{}, 100.);
  check_rms_prop(RmsProp<true, true>{}, 100.);
}

TEST_CASE("rules go where torch goes, as closely as torch in fp32") {
  namespace torch = torch_trajectories;
  constexpr float lr = 0x1p-6f;
  constexpr float eps = 0x1p-20f;
  constexpr float decay = 0x1p-5f;
  check_torch(Sgd{.lr = lr, .momentum = 0.875f, .weight_decay = decay}, torch::sgd);
  check_torch(Sgd{.lr = lr, .momentum = 0.875f, .nesterov = true, .maximize = true},
              torch::sgd_nesterov);
  check_torch(Sgd{.lr = lr, .momentum = 0.875f, .weight_decay = decay, .dampening = 0.25f},
              torch::sgd_dampening);
  check_torch(PlainSgd{.lr = lr, .weight_decay = decay, .maximize = true}, torch::plain_sgd);
  check_torch(Adam{.lr = lr, .eps = eps, .weight_decay = decay}, torch::adam);
  check_torch(Adam{.lr = lr, .eps = eps, .maximize = true}, torch::adam_maximize);
  check_torch(AdamW{.lr = lr, .eps = eps, .weight_decay = decay}, torch::adamw);
  check_torch(AdamW{.lr = lr, .eps = eps, .weight_decay = decay, .maximize = true},
              torch::adamw_maximize);
  check_torch(AmsGrad{.lr = lr, .eps = eps, .weight_decay = decay}, torch::amsgrad);
  check_torch(
      AmsGrad{.lr = lr, .eps = eps, .weight_decay = decay, .decoupled = false, .maximize = true},
      torch::amsgrad_coupled);
  check_torch(Adagrad{.lr = lr, .lr_decay = 0.125f, .weight_decay = decay, .eps = eps},
              torch::adagrad);
  check_torch(Adagrad{.lr = lr, .eps = eps, .initial_accumulator_value = 0.5f, .maximize = true},
              torch::adagrad_initial);
  check_torch(RmsProp<>{.lr = lr, .eps = eps, .weight_decay = decay}, torch::rmsprop);
  check_torch(RmsProp<true>{.lr = lr, .eps = eps, .momentum = 0.875f, .maximize = true},
              torch::rmsprop_momentum);
  check_torch(RmsProp<false, true>{.lr = lr, .eps = eps, .weight_decay = decay},
              torch::rmsprop_centered);
  check_torch(RmsProp<true, true>{.lr = lr, .eps = eps, .momentum = 0.875f}, torch::rmsprop_both);
  check_torch(NAdam{.lr = lr, .eps = eps}, torch::nadam);
  check_torch(NAdam{.lr = lr, .eps = eps, .weight_decay = decay, .momentum_decay = 0.03125},
              torch::nadam_decay);
}

TEST_CASE("zeros stay zeros, whatever decays") {
  CHECK(zeros_stay_zeros(Sgd{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(Sgd{.weight_decay = 0.1f, .nesterov = true}));
  CHECK(zeros_stay_zeros(PlainSgd{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(Adagrad{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(Adam{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(AdamW{}));
  CHECK(zeros_stay_zeros(AmsGrad{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(AmsGrad{.weight_decay = 0.1f, .decoupled = false}));
  CHECK(zeros_stay_zeros(NAdam{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(Lion{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(Lamb{}));
  CHECK(zeros_stay_zeros(Lars{.weight_decay = 0.1}));
  CHECK(zeros_stay_zeros(RmsProp<>{.weight_decay = 0.1f, .maximize = true}));
  CHECK(zeros_stay_zeros(RmsProp<true>{.momentum = 0.75f, .weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(RmsProp<false, true>{.weight_decay = 0.1f}));
  CHECK(zeros_stay_zeros(RmsProp<true, true>{.momentum = 0.75f, .weight_decay = 0.1f}));
}

TEST_CASE("rules name their states and hyper-parameters") {
  static_assert(PlainSgd::states.empty());
  static_assert(RmsProp<>::states.size() == 1);
  static_assert(RmsProp<true>::states[1].name == "momentum_buffer");
  static_assert(RmsProp<false, true>::states[1].name == "grad_avg");
  static_assert(RmsProp<true, true>::states[2].name == "grad_avg");
  CHECK((fields(Sgd{.5f, .25f, 2.f, true, .125f, true}) == Fields{{"lr", .5},
                                                                  {"momentum", .25},
                                                                  {"weight_decay", 2.},
                                                                  {"nesterov", 1.},
                                                                  {"dampening", .125},
                                                                  {"maximize", 1.}}));
  CHECK((fields(PlainSgd{3.f, 4.f, true}) ==
         Fields{{"lr", 3.}, {"weight_decay", 4.}, {"maximize", 1.}}));
  Adagrad const adagrad{.lr = .5f,
                        .lr_decay = .25f,
                        .weight_decay = 2.f,
                        .eps = .125f,
                        .initial_accumulator_value = 16.f,
                        .maximize = true};
  CHECK((fields(adagrad) == Fields{{"lr", .5},
                                   {"lr_decay", .25},
                                   {"weight_decay", 2.},
                                   {"eps", .125},
                                   {"initial_accumulator_value", 16.},
                                   {"maximize", 1.}}));
  Fields named{{"lr", .5}, {"beta1", .25}, {"beta2", .75}, {"weight_decay", 2.}};
  CHECK((fields(Lion{.5f, .25, .75, 2.f}) == named));
  named = {{"lr", .5}, {"beta1", .25}, {"beta2", .75}, {"eps", .125}, {"weight_decay", 2.}};
  auto const with = [&](Fields const& more) {
    Fields all = named;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  CHECK((fields(Adam{.5, .25, .75, .125, 2., true, true}) ==
         with({{"maximize", 1.}, {"eps_hat", 1.}})));
  CHECK((fields(AdamW{.5f, .25, .75, .125f, 2.f, true}) == with({{"maximize", 1.}})));
  CHECK((fields(AmsGrad{.5f, .25, .75, .125f, 2.f, false, true}) ==
         with({{"decoupled", 0.}, {"maximize", 1.}})));
  CHECK((fields(NAdam{.5f, .25, .75, .125f, 2.f, .25, true, true}) ==
         with({{"momentum_decay", .25}, {"decoupled", 1.}, {"maximize", 1.}})));
  CHECK((fields(Lamb{.5, .25, .75, .125, 2., 3., 4., true}) ==
         with({{"min_ratio", 3.}, {"max_ratio", 4.}, {"maximize", 1.}})));
  CHECK((fields(Lars{.5, .25, 2., .125, 3., 4., true}) == Fields{{"lr", .5},
                                                                 {"momentum", .25},
                                                                 {"weight_decay", 2.},
                                                                 {"trust", .125},
                                                                 {"min_ratio", 3.},
                                                                 {"max_ratio", 4.},
                                                                 {"maximize", 1.}}));
  RmsProp<true> const rms_prop{.5f, .25, .125f, .75f, 2.f, true};
  CHECK((fields(rms_prop) == Fields{{"lr", .5},
                                    {"alpha", .25},
                                    {"eps", .125},
                                    {"momentum", .75},
                                    {"weight_decay", 2.},
                                    {"maximize", 1.}}));
  // A momentum that nothing holds is refused where an optimizer is constructed.
  CHECK(rms_prop.fields()[3].below == 1.);
  CHECK(RmsProp<>{}.fields()[3].below < 1e-40);
}

/// What LAMB makes of its rate, and LARS of its ratio, by norms.
double rate_of(Lamb const& rule, double parameters, double direction, float lr = 0.5f) {
  auto scalars = rule.scalars(1, lr, 1.f, 1.f);
  rule.adjust(scalars, {parameters, direction});
  return static_cast<double>(scalars.learning_rate);
}
double ratio_of(Lars const& rule, double parameters, double gradient) {
  auto scalars = rule.scalars(1, 1.f, 1.f, 0.5f);
  auto const before = scalars;
  rule.adjust(scalars, {parameters, gradient});
  CHECK(scalars.learning_rate == before.learning_rate);
  float p = 0.f;
  float state = 0.f;
  rule.update<float>(scalars, p, 1.f, &state);
  return static_cast<double>(state);
}

TEST_CASE("trust ratios are 1 where a norm is 0, within their bounds elsewhere, and finite") {
  CHECK(rate_of({}, 6., 2.) == 1.5);
  CHECK(rate_of({}, 0., 2.) == 0.5);
  CHECK(rate_of({}, 6., 0.) == 0.5);
  Lamb const bound{.min_ratio = 2., .max_ratio = 4.};
  CHECK(rate_of(bound, 6., 2.) == 1.5);
  CHECK(rate_of(bound, 6., 1.) == 2.);
  CHECK(rate_of(bound, 6., 6.) == 1.);
  CHECK(rate_of(bound, 0., 6.) == 0.5);
  CHECK(rate_of({}, 1e30, 1e-30) == static_cast<double>(std::numeric_limits<float>::max()));
  CHECK(std::isnan(rate_of({}, std::nan(""), 1.)));
  CHECK(std::isnan(rate_of({}, 1., std::nan(""))));

  Lars const lars{.weight_decay = 0.25, .trust = 0.5};
  CHECK(ratio_of(lars, 8., 3.) == 1.);
  CHECK(ratio_of(lars, 8., 1.) == 2.);
  CHECK(ratio_of(lars, 0., 1.) == 1.);
  CHECK(ratio_of(lars, 8., 0.) == 1.);
  Lars const within{.weight_decay = 0.25, .trust = 0.5, .min_ratio = 1.25, .max_ratio = 1.5};
  CHECK(ratio_of(within, 8., 1.) == 1.5);
  CHECK(ratio_of(within, 8., 3.) == 1.25);
  CHECK(ratio_of(within, 8., 0.) == 1.);
  CHECK(std::isnan(ratio_of(lars, std::nan(""), 1.)));
}

TEST_CASE("gradients that are all alike have no variance, rather than less than none") {
  RmsProp<false, true> const rule{.lr = 1e-3f, .alpha = 0.5, .eps = 0.5f};
  for (float const gradient : {0.1f, 0.3f, 0.7f, 1.1f, 1.3f}) {
    float state[2] = {};
    float p = 0.f;
    for (long t = 1; t <= 200; ++t) p = after_step(rule, t, p, gradient, state);
    CHECK(p == doctest::Approx(-0.4f * gradient).epsilon(0.02));  // each a step of 1e-3 · g / eps
  }
}

TEST_CASE("Adam's bias correction keeps its digits at the start, and is nothing long after it") {
  // In fp32 1 - 0.999 is off by 5e-5 of itself.
  float state[2] = {};
  float p = after_step(Adam{.lr = 1.f}, 1, 0.f, 1.f, state);
  CHECK(std::fabs(static_cast<double>(state[1]) - 0.001) <= 0.001 * 0x1p-24);
  CHECK(static_cast<double>(p) == doctest::Approx(-1.).epsilon(1e-7));
  float late[2] = {};
  p = after_step(Adam{.lr = 0.5f}, 1'000'000'000L, 0.f, 1.f, late);
  CHECK(p == doctest::Approx(-0.5f * 0.1f / std::sqrt(0.001f)).epsilon(1e-5));
  // Powers by squaring.
  using zero::detail::power;
  CHECK(power(0.5, 0) == 1.);
  CHECK(power(0.5, 1) == 0.5);
  CHECK(power(0.5, 30) == 0x1p-30);
  CHECK(power(0.999, 100000) == doctest::Approx(std::pow(0.999, 100000.)).epsilon(1e-11));
}

TEST_CASE("a small decay of AdamW is not lost in 1 - lr * weight_decay") {
  // 1 - 3e-8 is 1 in fp32, yet a parameter just below a power of two has finer digits than that.
  float state[2] = {};
  AdamW const rule{.lr = 3e-6f, .weight_decay = 1e-2f};
  CHECK(after_step(rule, 1, 0x1.fffffep0f, 0.f, state) < 0x1.fffffep0f);
}

TEST_CASE("NAdam's momentum is what β₁ says in the end, and any step may be asked for") {
  NAdam const rule{.lr = 1.f, .beta1 = 0.5, .beta2 = 0., .momentum_decay = 1.};
  // 0.96^1000000 is nothing: (1 − ½) of the gradient and ½ of its mean, whose product is nothing.
  auto const late = rule.scalars(1000000, 1.f, 1.f, 1.f);
  CHECK(late.extra[4] == 0.5f);
  CHECK(late.extra[6] == 0.5f);
}

TEST_CASE("Lion, which torch does not have, by hand") {
  Lion const rule{.lr = 0.25f, .beta1 = 0.5, .beta2 = 0.75};
  float state[1] = {};
  CHECK(after_step(rule, 1, 1.f, 4.f, state) == 0.75f);
  CHECK(state[0] == 1.f);
  CHECK(after_step(rule, 2, 0.75f, -1.f, state) == 0.75f);  // 0.5 · 1 - 0.5 · 1: no direction
  CHECK(state[0] == 0.5f);
  CHECK(after_step(rule, 3, 0.75f, -4.f, state) == 1.f);
  // A NaN is not one either.
  CHECK(std::isnan(after_step(rule, 4, 1.f, std::numeric_limits<float>::quiet_NaN(), state)));
  Lion const decayed{.lr = 0.25f, .weight_decay = 0.5f};
  float still[1] = {};
  CHECK(after_step(decayed, 1, 2.f, 0.f, still) == 1.75f);
  CHECK(after_step(decayed, 1, 2.f, 0.f, still, 2.f, 1.f) == 1.5f);
  CHECK(after_step(decayed, 1, 2.f, 0.f, still, 1.f, 0.f) == 2.f);
}

}  // namespace rules_test
