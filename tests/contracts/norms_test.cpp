/// Rules that measure whole tensors: LAMB and LARS against programs of their own in fp64, and bit
/// for bit the same for every stage, rank count, bucket size and memory.
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/lent_memory.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "zero/comm/grid.hpp"
#include "zero/optimizer/any_optimizer.hpp"
#include "zero/optimizer/parts.hpp"
#include "zero/zero.hpp"

#include <atomic>
#include <map>

namespace norms_test {
namespace {

using contracts::on_ranks;
using zero::InProcess;
using zero::Lamb;
using zero::Lars;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;
using Rest = zero::Mixed<zero::bf16, zero::Rest16>;
using ShortRest = zero::Mixed<zero::bf16, zero::Rest8>;

using toy::worlds;
constexpr int batches = 8;  ///< of a step, whoever computes them

/// Layers in one description, tied, frozen, tiny and empty tensors, one that begins at zero with
/// another right behind it, one without a gradient, and one that rests in every third step.
std::vector<zero::Tensor> model() {
  return {{.name = "wte", .shape = {37, 5}, .unit = 0},
          {.name = "wpe", .shape = {1031}, .unit = 0, .learning_rate = 0.5},
          {.name = "layers", .shape = {3, 23, 31}, .unit = 1, .stacked = true},
          {.name = "frozen", .shape = {40}, .unit = 1, .frozen = true},
          {.name = "b", .shape = {}, .unit = 1, .weight_decay = 0.},
          {.name = "none", .shape = {0, 7}, .unit = 2},
          {.name = "zeros", .shape = {640}, .unit = 2},
          {.name = "beside", .shape = {320}, .unit = 2},
          {.name = "still", .shape = {45}, .unit = 3, .weight_decay = 0.},
          {.name = "w", .shape = {4097}, .unit = 3},
          {.name = "rests", .shape = {1500}, .unit = 4},
          {.name = "head", .shape = {37, 5}, .unit = 4, .tied_to = "wte"}};
}
constexpr std::size_t of_layers = 2, of_zeros = 6, of_still = 8, of_rests = 10, of_head = 11;
bool rests(std::size_t t, long step) { return t == of_rests && step % 3 == 1; }

float initial(std::size_t t, std::size_t i) {
  return t == of_zeros ? 0.f : toy::initial_value(t, i) * (t == of_layers && i < 713 ? 8.f : 1.f);
}
/// Sums of all are exact in 8 bits, however they are grouped.
float gradient(std::size_t t, std::size_t i, long step, int batch) {
  if (t == of_still) return 0.f;
  auto const at = static_cast<std::uint64_t>(step * batches + batch);
  return std::floor(toy::uniform(t + 50, i, at) * 17.f - 8.f) / 64.f;
}

template <class Number>
struct Arrays {
  std::map<std::string, std::vector<std::vector<Number>>> tensors{};  ///< master, then states
  std::map<std::string, std::vector<std::byte>> parameters{};         ///< as rank 0 reads them
  zero::Counters counters{};
  friend bool operator==(Arrays const&, Arrays const&) = default;
};

struct Run {
  int ranks = 1;
  std::size_t bucket = 1;
  long first = 0;
  long steps = 6;
  double max_norm = 1.25;  ///< clips all steps
  bool rest = true;
};

/// A model's memory, where a trainer lends it.
template <class O>
struct Lent {
  template <class... Any>
  explicit Lent(Any const&...) {}
  void bind_to(O&) {}
  void zero_gradients() {}
};
template <class O>
  requires(O::borrowed)
struct Lent<O> : toy::LentMemory<typename O::Parameter,
                                 typename O::Wire,
                                 zero::space::Host,
                                 zero::HostAllocator> {
  explicit Lent(std::vector<zero::Tensor> const& tensors)
      : Lent::LentMemory({}, {}, tensors, false) {}
};

/// Gradients of this rank's batches.
template <class O>
void backward(O& optimizer, int rank, int ranks, long step, bool rest) {
  double own = 0.;
  for (int batch = rank; batch < batches; batch += ranks) own += 1.;
  optimizer.micro_step({.weight = own, .last = true});
  auto const scale = static_cast<double>(optimizer.loss_scale());
  for (int const unit : optimizer.units_backward()) {
    auto gradients = optimizer.gradients(unit);
    std::size_t at = 0;
    for (std::size_t t = 0; t < optimizer.tensors().size(); ++t) {
      zero::Tensor const& tensor = optimizer.tensors()[t];
      int const slices = tensor.stacked ? static_cast<int>(tensor.shape[0]) : 1;
      if (unit < tensor.unit || unit >= tensor.unit + slices) continue;
      auto const out = gradients[at++];
      if (tensor.frozen) continue;
      if (rest && rests(t, step)) {
        optimizer.without_gradient(tensor);
        continue;
      }
      std::size_t const first = static_cast<std::size_t>(unit - tensor.unit) * out.size();
      for (std::size_t i = 0; i < out.size(); ++i) {
        double sum = 0.;
        for (int batch = rank; batch < batches; batch += ranks) {
          sum += static_cast<double>(gradient(t, first + i, step, batch));
        }
        using Wire = typename O::Wire;
        if constexpr (sizeof(Wire) == 2) {
          out[i] = Wire(static_cast<float>(out[i]) + static_cast<float>(sum * scale));
        } else {
          out[i] += static_cast<Wire>(sum);
        }
      }
    }
    optimizer.reduce(std::move(gradients));
  }
}

template <class O>
void load(O& optimizer) {
  optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
    auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial(t, first + i);
  });
}

/// What all ranks have in the end, from the saved beginning if there is one.
template <class O>
auto train(Run const& run,
           typename O::Rule const& rule = {},
           Arrays<typename O::Master> const* from = nullptr) {
  Arrays<typename O::Master> end;
  std::mutex mutex;
  zero::run_ranks(run.ranks, [&](InProcess& comm) {
    O optimizer{comm, model(), zero::Bucket{run.bucket}, rule};
    Lent<O> lent(model());
    lent.bind_to(optimizer);
    norms_test::load(optimizer);
    if (from != nullptr) {
      optimizer.fill_owned(
          [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
            auto const& arrays = from->tensors.at(tensor.name);
            for (std::size_t i = 0; i < masters.size(); ++i) {
              masters[i] = arrays[0][first + i];
              for (std::size_t k = 0; k < states.size(); ++k) {
                states[k][i] = arrays[1 + k][first + i];
              }
            }
          });
      optimizer.restore(from->counters);
    }
    for (long step = run.first; step < run.first + run.steps; ++step) {
      lent.zero_gradients();
      backward(optimizer, comm.rank(), run.ranks, step, run.rest);
      auto const report = optimizer.step({.max_norm = run.max_norm});
      if (comm.rank() == 0) CHECK(report.clip_coefficient < 1.);
    }
    CHECK(optimizer.held() == optimizer.plan().memory);
    auto const all = optimizer.full_parameters();
    std::lock_guard const lock(mutex);
    if (comm.rank() == 0) end.counters = optimizer.counters();
    for (std::size_t t = 0; comm.rank() == 0 && t < all.size(); ++t) {
      auto const bytes = std::as_bytes(all[t]);
      end.parameters[optimizer.tensors()[t].name].assign(bytes.begin(), bytes.end());
    }
    optimizer.visit_owned(
        [&](zero::Tensor const& tensor, std::size_t first, auto masters, auto const& states) {
          auto& arrays = end.tensors[tensor.name];
          arrays.resize(1 + states.size());
          for (auto& array : arrays) array.resize(zero::element_count(tensor));
          for (std::size_t i = 0; i < masters.size(); ++i) {
            arrays[0][first + i] = masters[i];
            for (std::size_t k = 0; k < states.size(); ++k) arrays[1 + k][first + i] = states[k][i];
          }
        });
  });
  return end;
}

/// The formulas, tensor by tensor and slice by slice. `p` and states are those of one.
struct Terms {
  long t;
  double lr;
  double decay;
};
double norm(std::vector<double> const& values) {
  double sum = 0.;
  for (double const value : values) sum += value * value;
  return std::sqrt(sum);
}
void follow(Lamb const& rule,
            Terms const& terms,
            std::vector<double>& p,
            std::vector<double> const& g,
            std::vector<std::vector<double>>& states) {
  std::vector<double> r(p.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    double& m = states[0][i];
    double& v = states[1][i];
    m = rule.beta1 * m + (1. - rule.beta1) * g[i];
    v = rule.beta2 * v + (1. - rule.beta2) * g[i] * g[i];
    double const mean = m / (1. - std::pow(rule.beta1, terms.t));
    double const root = std::sqrt(v / (1. - std::pow(rule.beta2, terms.t)));
    r[i] = mean / (root + rule.eps) + terms.decay * p[i];
  }
  double const w = norm(p);
  double const ratio =
      w == 0. || norm(r) == 0. ? 1. : std::clamp(w / norm(r), rule.min_ratio, rule.max_ratio);
  for (std::size_t i = 0; i < p.size(); ++i) p[i] -= terms.lr * ratio * r[i];
}
void follow(Lars const& rule,
            Terms const& terms,
            std::vector<double>& p,
            std::vector<double> const& g,
            std::vector<std::vector<double>>& states) {
  double const w = norm(p);
  double const size = norm(g);
  double const ratio =
      w == 0. || size == 0.
          ? 1.
          : std::clamp(rule.trust * w / (size + terms.decay * w), rule.min_ratio, rule.max_ratio);
  for (std::size_t i = 0; i < p.size(); ++i) {
    double& m = states[0][i];
    m = rule.momentum * m + ratio * (g[i] + terms.decay * p[i]);
    p[i] -= terms.lr * m;
  }
}

/// Masters and states after a run of a rule, in fp64.
template <class Rule>
Arrays<double> reference(Run const& run, Rule const& rule) {
  struct Piece {
    std::size_t t;
    std::size_t first;
    std::vector<double> p;
    std::vector<std::vector<double>> states;
    long updates = 0;
  };
  auto const tensors = model();
  std::vector<Piece> pieces;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (tensors[t].frozen || t == of_head) continue;
    std::size_t const slices = tensors[t].stacked ? tensors[t].shape[0] : 1;
    std::size_t const count = zero::element_count(tensors[t]) / slices;
    for (std::size_t s = 0; s < slices; ++s) {
      Piece piece{t, s * count, std::vector<double>(count), {}};
      for (std::size_t i = 0; i < count; ++i) {
        piece.p[i] = static_cast<double>(initial(t, s * count + i));
      }
      piece.states.assign(Rule::states.size(), std::vector<double>(count));
      pieces.push_back(std::move(piece));
    }
  }
  for (long step = run.first; step < run.first + run.steps; ++step) {
    auto const mean = [&](Piece const& piece, std::size_t i) {
      double sum = 0.;
      for (int batch = 0; batch < batches; ++batch) {
        sum += static_cast<double>(gradient(piece.t, piece.first + i, step, batch));
        if (piece.t == 0) sum += static_cast<double>(gradient(of_head, i, step, batch));
      }
      return sum / batches;
    };
    double squares = 0.;
    for (Piece const& piece : pieces) {
      if (run.rest && rests(piece.t, step)) continue;
      for (std::size_t i = 0; i < piece.p.size(); ++i) squares += mean(piece, i) * mean(piece, i);
    }
    double const clip = run.max_norm / std::sqrt(squares);
    for (Piece& piece : pieces) {
      if (run.rest && rests(piece.t, step)) continue;
      std::vector<double> g(piece.p.size());
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = mean(piece, i) * clip;
      zero::Tensor const& tensor = tensors[piece.t];
      Terms const terms{++piece.updates,
                        rule.lr * static_cast<double>(tensor.learning_rate),
                        rule.weight_decay * static_cast<double>(tensor.weight_decay)};
      follow(rule, terms, piece.p, g, piece.states);
    }
  }
  Arrays<double> end;
  for (Piece const& piece : pieces) {
    auto& arrays = end.tensors[tensors[piece.t].name];
    arrays.resize(1 + piece.states.size());
    arrays[0].insert(arrays[0].end(), piece.p.begin(), piece.p.end());
    for (std::size_t k = 0; k < piece.states.size(); ++k) {
      arrays[1 + k].insert(arrays[1 + k].end(), piece.states[k].begin(), piece.states[k].end());
    }
  }
  return end;
}

/// Relative to the largest of its array.
template <class Number>
void check_near(Arrays<Number> const& found, Arrays<double> const& wanted, double most) {
  for (auto const& [name, arrays] : wanted.tensors) {
    if (arrays[0].empty()) continue;
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      std::string const where = name + ", array " + std::to_string(k);
      CAPTURE(where);
      auto const& own = found.tensors.at(name)[k];
      REQUIRE(own.size() == arrays[k].size());
      double largest = 0.;
      double error = 0.;
      for (std::size_t i = 0; i < own.size(); ++i) {
        largest = std::max(largest, std::fabs(arrays[k][i]));
        error = std::max(error, std::fabs(arrays[k][i] - static_cast<double>(own[i])));
      }
      CHECK(error <= most * largest);
    }
  }
}

template <class Precision, class Rule, class... More>
using On = contracts::Optimizer<PosG, Precision, Rule, More...>;

template <class O>
void check_same(Arrays<typename O::Master> const& expected) {
  for (int const ranks : worlds) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12'345}, zero::MiB}) {
      INFO(O::Stage::name << " on " << ranks << " ranks, buckets of " << bucket);
      CHECK(train<O>({.ranks = ranks, .bucket = bucket}) == expected);
    }
  }
}

}  // namespace

TEST_CASE("LAMB follows its formula in fp64, tensor by tensor and slice by slice") {
  Run const run{.ranks = 3, .steps = 20};
  check_near(train<On<zero::Fp32, Lamb>>(run), reference(run, Lamb{}), 1e-5);
  Lamb const other{.lr = 0.01,
                   .beta1 = 0.8,
                   .beta2 = 0.95,
                   .eps = 1e-3,
                   .weight_decay = 0.25,
                   .min_ratio = 0.5,
                   .max_ratio = 0.75};
  check_near(train<On<zero::Fp32, Lamb>>(run, other), reference(run, other), 1e-5);
  // Bounds of 1 leave no ratio.
  Lamb const none{.min_ratio = 1., .max_ratio = 1.};
  check_near(train<On<zero::Fp32, Lamb>>(run, none), reference(run, none), 1e-5);
  check_near(train<On<zero::Fp64, Lamb>>(run, other), reference(run, other), 1e-13);
}

TEST_CASE("LARS follows its formula in fp64, tensor by tensor and slice by slice") {
  Run const run{.ranks = 3, .steps = 20};
  check_near(train<On<zero::Fp32, Lars>>(run), reference(run, Lars{}), 1e-5);
  Lars const other{.lr = 0.5, .momentum = 0.5, .weight_decay = 0.125, .trust = 0.01};
  check_near(train<On<zero::Fp32, Lars>>(run, other), reference(run, other), 1e-5);
  Lars const bound{.trust = 0.02, .min_ratio = 0.01, .max_ratio = 0.015};
  check_near(train<On<zero::Fp32, Lars>>(run, bound), reference(run, bound), 1e-5);
}

TEST_CASE_TEMPLATE("LAMB has the same bits for every stage, rank count and bucket",
                   Precision,
                   zero::Fp32,
                   Bf16,
                   Fp16,
                   Rest,
                   ShortRest) {
  auto const expected = train<On<Precision, Lamb>>({});
  check_same<contracts::Optimizer<Replicated, Precision, Lamb>>(expected);
  check_same<contracts::Optimizer<Pos, Precision, Lamb>>(expected);
  check_same<contracts::Optimizer<PosG, Precision, Lamb>>(expected);
  check_same<contracts::Optimizer<PosGP, Precision, Lamb>>(expected);
}

TEST_CASE("so it has of sums in shards, and in lent memory") {
  auto const expected = train<On<zero::Fp32, Lamb>>({});
  check_same<contracts::Optimizer<Replicated, zero::Fp32, Lamb, zero::AccumulateShard>>(expected);
  check_same<contracts::Optimizer<PosGP, zero::Fp32, Lamb, zero::AccumulateShard>>(expected);
  check_same<contracts::Optimizer<Replicated, zero::Fp32, Lamb, zero::Borrowed<>>>(expected);
  check_same<contracts::Optimizer<Pos, zero::Fp32, Lamb, zero::Borrowed<>>>(expected);
  check_same<contracts::Optimizer<PosG, zero::Fp32, Lamb, zero::BorrowedInPlace<>>>(expected);
  auto const half = train<On<Bf16, Lamb>>({});
  check_same<contracts::Optimizer<Pos, Bf16, Lamb, zero::Borrowed<>>>(half);
}

TEST_CASE("and LARS, and LAMB in fp64") {
  auto const lars = train<On<zero::Fp32, Lars>>({});
  check_same<contracts::Optimizer<Replicated, zero::Fp32, Lars>>(lars);
  check_same<contracts::Optimizer<PosGP, zero::Fp32, Lars>>(lars);
  auto const wide = train<On<zero::Fp64, Lamb>>({});
  check_same<contracts::Optimizer<Pos, zero::Fp64, Lamb>>(wide);
  check_same<contracts::Optimizer<PosGP, zero::Fp64, Lamb>>(wide);
}

TEST_CASE("what is resumed on other ranks, under another stage, goes on with the same bits") {
  auto const all = train<On<zero::Fp32, Lamb>>({.ranks = 2, .steps = 8});
  auto const half = train<contracts::Optimizer<PosGP, zero::Fp32, Lamb>>({.ranks = 3, .steps = 4});
  Run const rest{.ranks = 8, .bucket = zero::MiB, .first = 4, .steps = 4};
  CHECK(train<contracts::Optimizer<Replicated, zero::Fp32, Lamb>>(rest, {}, &half) == all);
  CHECK(train<contracts::Optimizer<PosGP, zero::Fp32, Lamb>>(rest, {}, &half) == all);
}

TEST_CASE("a step that is skipped measures nothing, exchanges nothing and changes nothing") {
  on_ranks(3, [](InProcess& inner, auto const& expect) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<PosG, zero::Fp32, Lamb> optimizer{
        watched.comm, model(), zero::Bucket{4096}};
    norms_test::load(optimizer);
    auto const step = [&](long number, bool faulty) {
      backward(optimizer, inner.rank(), 3, number, false);
      if (faulty) {
        optimizer.change_gradients(
            [](zero::Tensor const&, std::size_t, std::span<float> own, double) {
              own[0] = std::numeric_limits<float>::infinity();
            });
      }
      watched.comm.forget();
      auto const report = optimizer.step({.non_finite = zero::NonFinite::skip});
      expect(report.skipped == faulty, "skipped");
      long sums = 0;
      for (auto const& op : watched.comm.calls()) sums += op.op == zero::Op::all_reduce ? 1 : 0;
      return sums;
    };
    long const taken = step(0, false);
    auto const before = contracts::snapshot(optimizer);
    long const skipped = step(1, true);
    expect(taken == skipped + 1, "one exchange of norms in a step that is taken, and none else");
    expect(contracts::snapshot(optimizer) == before, "something changed");
    step(2, false);
    expect(contracts::snapshot(optimizer) != before, "training goes on");
  });
}

TEST_CASE("random bits are of the seed, also beside norms") {
  auto const bits_of = [](std::uint64_t seed) {
    zero::Self comm;
    zero::ShardedOptimizer optimizer{comm, model(), PosG{}, ShortRest{}, Lamb{}, zero::Seed{seed}};
    optimizer.load_parameters([&](zero::Tensor const& tensor, std::size_t first, auto out) {
      auto const t = static_cast<std::size_t>(&tensor - optimizer.tensors().data());
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = initial(t, first + i);
    });
    for (long step = 0; step < 2; ++step) {
      backward(optimizer, 0, 1, step, false);
      optimizer.step();
    }
    auto& parts = zero::detail::EngineAccess::engine(optimizer).parts();
    CHECK(parts.randomness.seed(parts.space()).value == seed);
    std::vector<float> bits;
    optimizer.visit_owned([&](auto const&, std::size_t, auto masters, auto const&) {
      bits.insert(bits.end(), masters.begin(), masters.end());
    });
    return bits;
  };
  auto const bits = bits_of(7);
  CHECK(bits_of(7) == bits);
  CHECK(bits_of(8) != bits);
}

/// Elements that are sent beside buckets in a step.
template <class Rule>
std::pair<zero::Traffic, zero::Plan> control_of(int ranks,
                                                std::vector<zero::Tensor> const& tensors) {
  std::pair<zero::Traffic, zero::Plan> result;
  zero::run_ranks(ranks, [&](InProcess& inner) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<PosG, zero::Fp32, Rule> optimizer{watched.comm, tensors};
    contracts::load(optimizer);
    for (int step = 0; step < 2; ++step) {
      watched.counted.reset();
      contracts::pass(optimizer, {}, step, inner.rank());
      optimizer.step();
    }
    CHECK(optimizer.held() == optimizer.plan().memory);
    if (inner.rank() == 0) result = {watched.counted.counts().control_total(), optimizer.plan()};
  });
  return result;
}

TEST_CASE("the plan counts what norms take and send, in exchanges of at most 1 MiB") {
  std::vector<zero::Tensor> many;
  for (int t = 0; t < 2000; ++t) {
    many.push_back({.name = "t" + std::to_string(t), .shape = {3}, .unit = t / 100});
  }
  for (auto const& tensors : {toy::model(), many}) {
    for (int const ranks : {1, 2, 3, 5}) {
      auto const [plain, without] = control_of<zero::AdamW>(ranks, tensors);
      auto const [traffic, plan] = control_of<Lamb>(ranks, tensors);
      CAPTURE(ranks);
      // What is frozen, tied or empty has none.
      auto const trained =
          static_cast<std::size_t>(std::ranges::count_if(tensors, [](zero::Tensor const& tensor) {
            return !tensor.frozen && tensor.tied_to.empty() && zero::element_count(tensor) > 0;
          }));
      std::size_t const exchanges = (trained + 962) / 963;
      CHECK(traffic.calls == plain.calls + exchanges);
      CHECK(traffic.elements - plain.elements == plan.traffic.norms);
      CHECK(traffic.bytes - plain.bytes == plan.sent.norms);
      auto const n = static_cast<std::uint64_t>(ranks);
      // Rounded up in each exchange.
      std::uint64_t const words = 2 * 68 * trained;
      CHECK(plan.traffic.norms >= 2 * words * (n - 1) / n);
      CHECK(plan.traffic.norms <= 2 * words * (n - 1) / n + 2 * exchanges * n);
      CHECK(plan.traffic.total() == without.traffic.total() + plan.traffic.norms);
      CHECK(plan.sent.total() == without.sent.total() + 8 * plan.traffic.norms);
      auto memory = plan.memory;
      memory[zero::Role::control] -= 1088 * trained;
      CHECK(memory == without.memory);
      CHECK(without.traffic.norms == 0);
      bool const row = to_string(plan).find("\nnorms ") != std::string::npos;
      CHECK(row == (ranks > 1));
      CHECK(to_string(without).find("\nnorms ") == std::string::npos);
    }
  }
}

/// Counts what is measured.
struct Counted : zero::PlainSgd {
  static inline std::atomic<long> measured{0};
  template <class V>
  void measure(
      zero::ScalarsOf<V> const&, V const& p, V const& g, V const*, V (&numbers)[2]) const noexcept {
    ++measured;
    numbers[0] = p;
    numbers[1] = g;
  }
  template <class Real>
  void adjust(zero::BasicStepScalars<Real>&, double const (&)[2]) const noexcept {}
  friend bool operator==(Counted const&, Counted const&) = default;
};

TEST_CASE("a tensor that rests is not measured, nor anything in a step that is skipped") {
  contracts::Alone<On<zero::Fp32, Counted>> alone{
      {{.name = "a", .shape = {320}}, {.name = "b", .shape = {320}, .unit = 1}}};
  auto const step = [&](bool rests, float value) {
    Counted::measured = 0;
    for (int const unit : {1, 0}) {
      if (unit == 1 && rests) {
        alone.optimizer.without_gradient(unit);
        continue;
      }
      auto gradients = alone.optimizer.gradients(unit);
      gradients[0][0] = value;
      alone.optimizer.reduce(std::move(gradients));
    }
    alone.optimizer.step({.non_finite = zero::NonFinite::skip});
    return Counted::measured.load();
  };
  long const both = step(false, 1.f);
  CHECK(both > 0);
  CHECK(2 * step(true, 1.f) == both);
  CHECK(step(false, std::numeric_limits<float>::infinity()) == 0);
  CHECK(step(false, 1.f) == both);
}

/// Elements become the norm of their tensor.
struct ShowNorm {
  static constexpr std::string_view name = "show norm";
  static constexpr std::array<zero::StateArray, 0> states{};
  double lr = 1.;
  template <class Real>
  [[nodiscard]] zero::BasicStepScalars<Real> scalars(long, Real, Real, Real) const noexcept {
    return {};
  }
  template <class V>
  void measure(
      zero::ScalarsOf<V> const&, V const& p, V const& g, V const*, V (&numbers)[2]) const noexcept {
    numbers[0] = p;
    numbers[1] = g;
  }
  template <class Real>
  void adjust(zero::BasicStepScalars<Real>& s, double const (&norms)[2]) const noexcept {
    s.extra[0] = static_cast<Real>(norms[0]);
    s.extra[1] = static_cast<Real>(norms[1]);
  }
  template <class V>
  void update(zero::ScalarsOf<V> const& s, V& p, V const& g, V*) const noexcept {
    p = V(s.extra[0]) + (g - g);
  }
  friend bool operator==(ShowNorm const&, ShowNorm const&) = default;
};

TEST_CASE("over a grid norms are those of whole tensors, whatever divides them") {
  for (std::pair<int, int> const& axes : {std::pair{1, 1}, {2, 1}, {1, 2}, {3, 2}, {2, 4}}) {
    int const data = axes.first;
    int const parts = axes.second;
    CAPTURE(data);
    CAPTURE(parts);
    zero::run_ranks(data * parts, [&](InProcess& world) {
      zero::Grid grid{world, data, parts};
      auto const own = static_cast<std::size_t>(8 / parts);
      std::vector<zero::Tensor> const tensors{
          {.name = "same", .shape = {700}},
          {.name = "divided", .shape = {100, own}, .partitioned = true}};
      contracts::Optimizer<PosGP, zero::Fp32, ShowNorm> optimizer{grid, tensors};
      optimizer.load_parameters([&](zero::Tensor const&, std::size_t, std::span<float> out) {
        std::fill(out.begin(), out.end(), 2.f);
      });
      auto gradients = optimizer.gradients(0);
      for (std::size_t t = 0; t < 2; ++t) std::fill(gradients[t].begin(), gradients[t].end(), 1.f);
      optimizer.reduce(std::move(gradients));
      optimizer.step();
      auto const parameters = optimizer.parameters(0);
      CHECK(parameters[0][699] == static_cast<float>(std::sqrt(700. * 4.)));
      CHECK(parameters[1][1] == static_cast<float>(std::sqrt(800. * 4.)));
    });
  }
}

TEST_CASE("optimizers that step together measure each for itself") {
  on_ranks(2, [](InProcess& comm, auto const& expect) {
    using O = contracts::Optimizer<PosGP, zero::Fp32, Lamb>;
    O first{comm, model()};
    O second{comm, model(), Lamb{.max_ratio = 0.5}};
    O alone{comm, model(), Lamb{.max_ratio = 0.5}};
    for (O* const each : {&first, &second, &alone}) norms_test::load(*each);
    for (long step = 0; step < 3; ++step) {
      for (O* const each : {&first, &second, &alone}) {
        backward(*each, comm.rank(), 2, step, true);
      }
      zero::step_together({}, first, second);
      alone.step();
    }
    expect(contracts::owned_bits(second) == contracts::owned_bits(alone), "as alone");
    expect(contracts::owned_bits(first) != contracts::owned_bits(alone), "bounds");
  });
}

TEST_CASE("a tensor with bounds of its own, by name or by group, has no ratio") {
  on_ranks(2, [](InProcess& comm, auto const& expect) {
    using O = contracts::Optimizer<PosG, zero::Fp32, Lamb>;
    auto tensors = model();
    tensors[1].group = "plain";
    O all{comm, tensors, Lamb{.min_ratio = 1., .max_ratio = 1.}};
    O some{comm, tensors};
    some.set_rule("plain", Lamb{.min_ratio = 1., .max_ratio = 1.});
    O none{comm, tensors};
    for (O* const each : {&all, &some, &none}) {
      norms_test::load(*each);
      backward(*each, comm.rank(), 2, 0, true);
      each->step();
    }
    auto const bits_of = [](O& optimizer, int unit, std::size_t at) {
      auto const parameters = optimizer.parameters(unit);
      std::vector<std::byte> bits;
      contracts::append(bits, parameters[at]);
      return bits;
    };
    expect(bits_of(some, 0, 1) == bits_of(all, 0, 1), "the group has no ratio");
    expect(bits_of(some, 0, 1) != bits_of(none, 0, 1), "others have one");
    expect(bits_of(some, 3, 2) == bits_of(none, 3, 2), "the rest has one");
  });
}

TEST_CASE("hyper-parameters that make no sense are refused by name") {
  contracts::Alone<On<zero::Fp32, Lamb>> lamb{{{.name = "w", .shape = {10}}}};
  auto const refused = [&](auto const& rule) {
    return refusal([&] {
      auto handles = InProcess::group(1);
      zero::ShardedOptimizer optimizer{
          handles[0], std::vector<zero::Tensor>{{.name = "w", .shape = {10}}}, rule};
    });
  };
  CHECK(refused(Lamb{.min_ratio = 2., .max_ratio = 1.}) ==
        "rule.max_ratio is 1, but must be finite and at least 2");
  CHECK(refused(Lamb{.min_ratio = -1.}) ==
        "rule.min_ratio is -1, but must be finite and at least 0");
  CHECK(refused(Lamb{.beta2 = 1.}) == "rule.beta2 is 1, but must be at least 0 and less than 1");
  CHECK(refused(Lars{.trust = -0.5}) == "rule.trust is -0.5, but must be finite and at least 0");
  CHECK(refused(Lars{.min_ratio = 2., .max_ratio = 1.}) ==
        "rule.max_ratio is 1, but must be finite and at least 2");
  CHECK(refusal([&] { lamb.optimizer.set_rule(Lamb{.eps = -1.}); }) ==
        "rule.eps is -1, but must be finite and at least 0");
}

}  // namespace norms_test
