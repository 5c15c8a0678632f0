// Double precision: against a reference in double, over stages, ranks, buckets and memory.
#include "contracts/ranks.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include <zero/zero.hpp>

namespace double_test {
namespace {

using zero::bf16;
using zero::Fp64;

/// A double master over float parameters, and over bf16 ones.
template <class Small>
struct DoubleMaster {
  static constexpr std::string_view name = "double master";
  using Parameter = Small;
  using Wire = Small;
  using Accumulate = float;
  using Master = double;
  using State = double;
  static constexpr bool loss_scaled = false;
  friend bool operator==(DoubleMaster const&, DoubleMaster const&) = default;
};

/// A double in [-1/2, 1/2) with all its digits.
double number(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a + 1) * 0x9e3779b97f4a7c15u + (b + 1) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 31) * 0x94d049bb133111ebu;
  return static_cast<double>(static_cast<std::int64_t>(x ^ x >> 29) >> 11) * 0x1p-53;
}
/// A multiple of 2^-40, so that sums of some are exact.
double gradient(std::size_t tensor, std::size_t element, long step, int batch) {
  std::uint64_t const of = static_cast<std::uint64_t>(step * 16 + batch);
  return std::floor(number(tensor * 100000 + element, of) * 0x1p40) * 0x1p-40;
}

std::vector<zero::Tensor> model() {
  return {{.name = "a", .shape = {29, 31}, .unit = 0},
          {.name = "b", .shape = {700}, .unit = 1, .weight_decay = 0.1, .learning_rate = 0.7},
          {.name = "c", .shape = {3}, .unit = 1, .weight_decay = 0.}};
}

struct Run {
  int ranks = 1;
  int batches = 6;  ///< of all ranks in a step
  long steps = 10;
  std::size_t bucket = 1;
};

template <class O>
void load(O& optimizer) {
  optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) {
      using T = std::remove_reference_t<decltype(out[i])>;
      out[i] = static_cast<T>(number(t, first + i));
    }
  });
}

/// All parameters of rank 0 after a run.
template <class O, class... Values>
std::vector<typename O::Parameter> train(Run const& run, Values const&... values) {
  std::vector<typename O::Parameter> result;
  zero::run_ranks(run.ranks, [&](zero::InProcess& comm) {
    O optimizer{comm, model(), zero::Bucket{run.bucket}, values...};
    load(optimizer);
    int const each = run.batches / run.ranks;
    for (long step = 0; step < run.steps; ++step) {
      for (int micro = 0; micro < each; ++micro) {
        if (each > 1) optimizer.micro_step({.last = micro + 1 == each});
        for (int const unit : optimizer.units_backward()) {
          auto gradients = optimizer.gradients(unit);
          contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t at) {
            auto const to = gradients[at];
            for (std::size_t i = 0; i < to.size(); ++i) {
              double const g = gradient(t, i, step, comm.rank() * each + micro);
              if constexpr (std::is_same_v<typename O::Wire, double>) {
                to[i] += g;
              } else {
                to[i] = static_cast<typename O::Wire>(static_cast<float>(g));
              }
            }
          });
          optimizer.reduce(std::move(gradients));
        }
      }
      (void)optimizer.step({.learning_rate = step % 2 == 0 ? 1e-3 : 3e-3, .max_norm = 7.5});
    }
    for (int const unit : optimizer.units()) {
      auto const parameters = optimizer.parameters(unit);
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (comm.rank() == 0)
          result.insert(result.end(), parameters[i].begin(), parameters[i].end());
      }
    }
  });
  return result;
}

template <class Stage, class... More>
using Optimizer = zero::ShardedOptimizer<zero::InProcess, Stage, Fp64, zero::AdamW, More...>;

/// What torch.optim.AdamW documents, in double.
std::vector<double> reference(Run const& run) {
  std::vector<double> result;
  auto const tensors = model();
  std::vector<std::vector<double>> p, m, v;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    p.emplace_back(zero::element_count(tensors[t]));
    for (std::size_t i = 0; i < p[t].size(); ++i) p[t][i] = number(t, i);
    m.emplace_back(p[t].size());
    v.emplace_back(p[t].size());
  }
  for (long step = 0; step < run.steps; ++step) {
    auto const mean = [&](std::size_t t, std::size_t i) {
      double sum = 0.;
      for (int batch = 0; batch < run.batches; ++batch) sum += gradient(t, i, step, batch);
      return sum / run.batches;
    };
    double squares = 0.;
    for (std::size_t t = 0; t < p.size(); ++t) {
      for (std::size_t i = 0; i < p[t].size(); ++i) squares += mean(t, i) * mean(t, i);
    }
    double const norm = std::sqrt(squares);
    double const clip = norm > 7.5 ? 7.5 / norm : 1.;
    double const first = 1. - std::pow(0.9, step + 1);
    double const second = 1. - std::pow(0.999, step + 1);
    for (std::size_t t = 0; t < p.size(); ++t) {
      double const rate = (step % 2 == 0 ? 1e-3 : 3e-3) * tensors[t].learning_rate;
      for (std::size_t i = 0; i < p[t].size(); ++i) {
        double const g = mean(t, i) * clip;
        p[t][i] -= rate * 1e-2 * tensors[t].weight_decay * p[t][i];
        m[t][i] = 0.9 * m[t][i] + (1. - 0.9) * g;
        v[t][i] = 0.999 * v[t][i] + (1. - 0.999) * g * g;
        p[t][i] -= rate * (m[t][i] / first) / (std::sqrt(v[t][i] / second) + 1e-8);
      }
    }
  }
  for (auto const& tensor : p) result.insert(result.end(), tensor.begin(), tensor.end());
  return result;
}

double distance(std::vector<double> const& a, std::vector<double> const& b) {
  REQUIRE(a.size() == b.size());
  double most = 0.;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

TEST_CASE("fp64 stays within 1e-15 of a reference in double for 240 steps") {
  Run run{.steps = 240};
  run.batches = 1;
  auto const trained = train<Optimizer<zero::stage::PosG>>(run);
  double const apart = distance(trained, reference(run));
  CAPTURE(apart);
  CHECK(apart < 1e-15);
  CHECK(distance(trained, train<Optimizer<zero::stage::PosG>>({.batches = 1, .steps = 239})) >
        1e-4);
}

TEST_CASE("fp64 has the same bits under all stages, on any rank count, in any buckets") {
  Run const one{};
  auto const expected = train<Optimizer<zero::stage::Replicated, zero::AccumulateFull>>(one);
  CHECK(distance(expected, reference(one)) < 1e-15);
  for (int const ranks : {1, 2, 3, 6}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{4096}, std::size_t{1} << 20}) {
      Run run = one;
      run.ranks = ranks;
      run.bucket = bucket;
      CAPTURE(ranks);
      CAPTURE(bucket);
      CHECK(train<Optimizer<zero::stage::Replicated, zero::AccumulateFull>>(run) == expected);
      CHECK(train<Optimizer<zero::stage::Pos, zero::AccumulateFull>>(run) == expected);
      CHECK(train<Optimizer<zero::stage::PosG, zero::AccumulateShard>>(run) == expected);
      CHECK(train<Optimizer<zero::stage::PosGP, zero::AccumulateShard>>(run) == expected);
    }
  }
}

/// The distance of parameters from the reference, in units of the last place of a type.
template <class Small>
double from_reference(Run const& run) {
  using Precision = DoubleMaster<Small>;
  using O = zero::ShardedOptimizer<zero::InProcess, zero::stage::PosG, Precision, zero::AdamW>;
  auto const trained = train<O>(run);
  auto const expected = reference(run);
  REQUIRE(trained.size() == expected.size());
  double most = 0.;
  for (std::size_t i = 0; i < trained.size(); ++i) {
    most =
        std::max(most, std::abs(static_cast<double>(static_cast<float>(trained[i])) - expected[i]));
  }
  return most;
}

TEST_CASE("masters in double serve parameters in fp32 and in bf16") {
  Run run{};
  run.batches = 1;
  // Half a unit in the last place of what they are rounded to; gradients are rounded as well.
  CHECK(from_reference<float>(run) < 1e-7);
  CHECK(from_reference<bf16>(run) < 3e-3);
}

TEST_CASE("a norm in double has the digits of double, and counts what it cannot square") {
  zero::Self self;
  zero::ShardedOptimizer optimizer{
      self, {{.name = "a", .shape = {1000}}}, Fp64{}, zero::PlainSgd{.lr = 1.}};
  optimizer.load_parameters([](auto const&, std::size_t, std::span<double> out) {
    std::fill(out.begin(), out.end(), 0.);
  });
  auto const step = [&](double scale, zero::StepOptions const& options) {
    auto gradients = optimizer.gradients(0);
    for (std::size_t i = 0; i < 1000; ++i) gradients[0][i] = scale * number(7, i);
    optimizer.reduce(std::move(gradients));
    return optimizer.step(options);
  };
  long double squares = 0.;
  for (std::size_t i = 0; i < 1000; ++i) {
    auto const x = static_cast<long double>(number(7, i));
    squares += x * x;
  }
  auto const expected = static_cast<double>(std::sqrt(squares));
  CHECK(std::abs(step(1., {}).grad_norm - expected) <= 4e-16 * expected);
  CHECK(optimizer.parameter(0)[5] == -number(7, 5));
  CHECK(std::abs(step(0x1p-300, {}).grad_norm - 0x1p-300 * expected) <= 0x1p-350 * expected);
  CHECK(std::abs(step(0x1p500, {}).grad_norm - 0x1p500 * expected) <= 0x1p450 * expected);
  CHECK(refusal([&] { (void)step(0x1p520, {}); }, zero::ErrorKind::data).find("not finite") !=
        std::string::npos);
}

TEST_CASE("a rate in double is read where it lies") {
  zero::Self self;
  zero::ShardedOptimizer optimizer{
      self, {{.name = "a", .shape = {4}}}, Fp64{}, zero::PlainSgd{.lr = 1.}};
  optimizer.load_parameters([](auto const&, std::size_t, std::span<double> out) {
    std::fill(out.begin(), out.end(), 0.);
  });
  double rate = 0.1;
  auto gradients = optimizer.gradients(0);
  for (double& g : gradients[0]) g = 1.;
  optimizer.reduce(std::move(gradients));
  (void)optimizer.step({.learning_rate_address_double = &rate});
  CHECK(optimizer.parameter(0)[1] == -0.1);
}

}  // namespace
}  // namespace double_test
