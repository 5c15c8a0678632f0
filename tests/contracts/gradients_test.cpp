/// Reduced gradients before the update: shown to a trainer, or changed by it, the same under every
/// stage, bucket size and number of ranks.
#include "contracts/ranks.hpp"
#include "contracts/recording.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "zero/zero.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace gradients_test {
namespace {

using zero::Fp32;
using zero::InProcess;
using zero::stage::Pos;
using zero::stage::PosG;
using zero::stage::PosGP;
using zero::stage::Replicated;
using Fp16 = zero::Mixed<zero::fp16>;

constexpr int batches = 4;
constexpr double limit = 0.25;

/// The last tensor has no gradient.
std::vector<zero::Tensor> const& model() {
  static std::vector<zero::Tensor> const tensors{
      {.name = "a", .shape = {700}},
      {.name = "b", .shape = {5, 3}},
      {.name = "cold", .shape = {9}, .frozen = true},
      {.name = "c", .shape = {1300}, .unit = 1},
      {.name = "b again", .shape = {5, 3}, .unit = 1, .tied_to = "b"},
      {.name = "rests", .shape = {40}, .unit = 1}};
  return tensors;
}
/// Of one micro-batch: sums and means of four are exact, in fp16 too.
float gradient(std::string const& tensor, std::size_t i, int batch) {
  auto const salt = static_cast<std::size_t>(tensor.back());
  return static_cast<float>((i * 7 + static_cast<std::size_t>(batch) * 3 + salt) % 11) / 8.f - 0.5f;
}
double mean(std::string const& tensor, std::size_t i) {
  double sum = 0.;
  for (int batch = 0; batch < batches; ++batch) {
    sum += static_cast<double>(gradient(tensor, i, batch));
    if (tensor == "b") sum += static_cast<double>(gradient("b again", i, batch));
  }
  return sum / batches;
}

/// What all ranks were shown.
struct Shown {
  std::map<std::string, std::vector<int>> times{};
  std::map<std::string, double> squares{};
  double largest = 0.;
  std::string wrong{};
  friend bool operator==(Shown const&, Shown const&) = default;
};
struct Result {
  Shown before{}, after{};
  double norm = 0.;
  std::vector<std::byte> bits{};
  friend bool operator==(Result const&, Result const&) = default;
};

/// A trainer that lends its gradients, or not.
template <class O>
struct Trainer {
  template <class... Values>
  explicit Trainer(InProcess& comm, Values const&... values)
      : rank(comm.rank()), size(comm.size()), optimizer(comm, model(), values...) {
    if constexpr (O::borrowed) {
      std::vector<std::span<typename O::Parameter>> p;
      std::vector<std::span<typename O::Wire>> g;
      for (std::size_t t = 0; t < model().size(); ++t) {
        std::size_t const count = model()[t].name == "b again" ? 0 : elements_of(t);
        parameters.emplace_back(count);
        gradients.emplace_back(model()[t].frozen ? 0 : count);
      }
      for (auto& each : parameters) p.emplace_back(each);
      for (auto& each : gradients) g.emplace_back(each);
      optimizer.bind(p, g);
    }
    optimizer.load_parameters([](auto const&, std::size_t first, auto out) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(first + i) / 64.f;
    });
  }
  static std::size_t elements_of(std::size_t t) {
    std::size_t count = 1;
    for (std::size_t const extent : model()[t].shape) count *= extent;
    return count;
  }

  /// All micro-batches of this rank: those of a rank follow one another.
  void backward() {
    for (auto& each : gradients) std::fill(each.begin(), each.end(), typename O::Wire(0.f));
    for (int batch = rank * batches / size; batch < (rank + 1) * batches / size; ++batch) {
      optimizer.micro_step({.last = batch + 1 == (rank + 1) * batches / size});
      if constexpr (O::borrowed && !O::Accumulation::full_gradients) {
        for (auto& each : gradients) std::fill(each.begin(), each.end(), typename O::Wire(0.f));
      }
      optimizer.without_gradient(model().back());
      for (int const unit : optimizer.units_backward()) {
        auto own = optimizer.gradients(unit);
        contracts::for_each_tensor(optimizer, unit, [&](std::size_t t, std::size_t i) {
          std::string const& name = optimizer.tensors()[t].name;
          if (name == "rests") return;
          for (std::size_t k = 0; k < own[i].size(); ++k) {
            float const more = gradient(name, k, batch) * optimizer.loss_scale();
            own[i][k] = static_cast<typename O::Wire>(static_cast<float>(own[i][k]) + more);
          }
        });
        optimizer.reduce(std::move(own));
      }
    }
  }

  int rank, size;
  std::vector<std::vector<typename O::Parameter>> parameters{};
  std::vector<std::vector<typename O::Wire>> gradients{};
  O optimizer;
};

void take(Shown& all,
          zero::Tensor const& tensor,
          std::size_t first,
          auto run,
          double scale,
          double most) {
  auto& times = all.times[tensor.name];
  times.resize((std::max)(times.size(), first + run.size()));
  for (std::size_t i = 0; i < run.size(); ++i) {
    double const value = static_cast<double>(static_cast<float>(run[i])) * scale;
    double const expected = std::clamp(mean(tensor.name, first + i), -most, most);
    if (value != expected) all.wrong = tensor.name + " " + std::to_string(first + i);
    ++times[first + i];
    all.squares[tensor.name] += value * value;
    all.largest = (std::max)(all.largest, std::abs(value));
  }
}

/// Looks in one step, clips each element in the next, and steps on.
template <class O, class... Values>
Result train(int ranks, Values const&... values) {
  Result result;
  std::mutex mutex;
  zero::run_ranks(ranks, [&](InProcess& comm) {
    Trainer<O> trainer(comm, values...);
    auto& optimizer = trainer.optimizer;
    auto const look = [&](Shown& all, double most) {
      optimizer.visit_gradients([&](auto const& tensor, std::size_t first, auto run, double scale) {
        static_assert(std::is_const_v<typename decltype(run)::element_type>);
        std::lock_guard const lock(mutex);
        take(all, tensor, first, run, scale, most);
      });
    };
    trainer.backward();
    look(result.before, 1e9);
    optimizer.step();
    trainer.backward();
    optimizer.change_gradients([&](auto const&, std::size_t, auto run, double scale) {
      for (auto& g : run) {
        auto const most = static_cast<float>(limit / scale);
        g = static_cast<typename O::Gradient>(std::clamp(static_cast<float>(g), -most, most));
      }
    });
    double const norm = optimizer.grad_norm();
    look(result.after, limit);
    auto const report = optimizer.step({.max_norm = 2.});
    trainer.backward();
    optimizer.step();
    auto const bits = contracts::model_bits(optimizer);
    std::lock_guard const lock(mutex);
    if (report.grad_norm != norm) result.after.wrong = "the norm of the report";
    result.norm = norm;
    if (!result.bits.empty() && bits != result.bits) result.after.wrong = "other parameters";
    result.bits = bits;
  });
  return result;
}

/// Each element was shown on one rank, with its mean; what rests was not.
void check_shown(Shown const& shown, double most) {
  CHECK(shown.wrong == "");
  CHECK(shown.times.size() == 3);
  double largest = 0.;
  for (auto const& [tensor, count] :
       std::map<std::string, std::size_t>{{"a", 700}, {"b", 15}, {"c", 1300}}) {
    std::string const& name = tensor;
    CAPTURE(name);
    REQUIRE(shown.times.contains(name));
    CHECK(shown.times.at(name) == std::vector<int>(count, 1));
    double squares = 0.;
    for (std::size_t i = 0; i < count; ++i) {
      double const value = std::clamp(mean(name, i), -most, most);
      squares += value * value;
      largest = (std::max)(largest, std::abs(value));
    }
    CHECK(shown.squares.at(name) == squares);
  }
  CHECK(shown.largest == largest);
}
void check(Result const& result) {
  check_shown(result.before, 1e9);
  check_shown(result.after, limit);
  CHECK(result.before.largest > limit);
  double squares = 0.;
  for (auto const& [name, own] : result.after.squares) squares += own;
  CHECK(result.norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
}

template <class... Policies>
using O = contracts::Optimizer<Policies...>;

TEST_CASE("reduced gradients are shown and changed alike under all stages, buckets and ranks") {
  using Full = zero::AccumulateFull;
  using Shard = zero::AccumulateShard;
  auto const expected = train<O<Replicated, Fp32, zero::Adam, Full>>(1, zero::Bucket{4096});
  check(expected);
  for (int const ranks : {1, 2, 4}) {
    for (std::size_t const bytes : {std::size_t{4096}, std::size_t{1} << 20}) {
      CAPTURE(ranks);
      CAPTURE(bytes);
      zero::Bucket const bucket{bytes};
      CHECK(train<O<Replicated, Fp32, zero::Adam, Full>>(ranks, bucket) == expected);
      CHECK(train<O<Pos, Fp32, zero::Adam, Full>>(ranks, bucket) == expected);
      CHECK(train<O<PosG, Fp32, zero::Adam, Shard>>(ranks, bucket) == expected);
      CHECK(train<O<PosGP, Fp32, zero::Adam, Shard>>(ranks, bucket) == expected);
    }
  }
}

TEST_CASE(
    "so are those without micro-steps, gradients that are lent, and those with a loss scale") {
  auto const expected = train<O<Replicated, Fp32, zero::Adam, zero::AccumulateFull>>(1);
  // One micro-batch for each rank.
  CHECK(train<O<PosGP, Fp32, zero::Adam>>(4) == expected);
  CHECK(train<O<Replicated, Fp32, zero::Adam>>(4) == expected);
  CHECK(train<O<Pos, Fp32, zero::Adam, zero::AccumulateFull, zero::Borrowed<>>>(2) == expected);
  CHECK(train<O<PosG, Fp32, zero::Adam, zero::AccumulateFull, zero::Borrowed<>>>(4) == expected);
  CHECK(train<O<PosG, Fp32, zero::Adam, zero::AccumulateFull, zero::BorrowedInPlace<>>>(
            2, zero::Bucket{4096}) == expected);
  Fp16 const fp16{.loss_scale = {.initial = 256.f}};
  auto const scaled = train<O<Replicated, Fp16, zero::Adam, zero::AccumulateFull>>(1, fp16);
  check(scaled);
  CHECK(train<O<Pos, Fp16, zero::Adam, zero::AccumulateFull>>(4, fp16) == scaled);
  CHECK(train<O<PosG, Fp16, zero::Adam, zero::AccumulateFull>>(2, fp16) == scaled);
}

TEST_CASE(
    "gradients are not changed once their norm is known, and nothing else than control is sent") {
  contracts::on_ranks(2, [](InProcess& inner, auto const& expect) {
    contracts::Watched watched{inner};
    contracts::WatchedOptimizer<PosG, Fp32> optimizer{watched.comm,
                                                      {{.name = "w", .shape = {3000}}}};
    optimizer.adopt_parameters();
    auto const pass = [&] {
      auto gradients = optimizer.gradients(0);
      std::fill(gradients[0].begin(), gradients[0].end(), 1.f);
      optimizer.reduce(std::move(gradients));
    };
    auto const nothing = [](auto const&, std::size_t, auto const&, double) {};
    auto const zeros = [](auto const&, std::size_t, auto run, double) {
      std::fill(run.begin(), run.end(), 0.f);
    };
    pass();
    optimizer.step();
    std::string const after =
        "change_gradients() after grad_norm() or visit_gradients(): the norm of what is to be "
        "changed is known to all ranks already; change first";
    for (int const how : {0, 1}) {
      pass();
      if (how == 0) static_cast<void>(optimizer.grad_norm());
      if (how == 1) optimizer.visit_gradients(nothing);
      expect(refusal([&] { optimizer.change_gradients(zeros); }) == after, "refused");
      expect(optimizer.step().grad_norm == std::sqrt(3000.), "as it was");
    }
    auto const before = watched.counted.counts();
    pass();
    optimizer.change_gradients(zeros);
    optimizer.change_gradients(nothing);
    optimizer.visit_gradients(nothing);
    expect(optimizer.step().grad_norm == 0., "all are zeros");
    auto const sent =
        watched.counted.counts().bucket_total().elements - before.bucket_total().elements;
    expect(sent == optimizer.plan().traffic.total(), "buckets are as planned");
  });
}

TEST_CASE("what is not finite cannot be clipped away") {
  contracts::on_ranks(2, [](InProcess& comm, auto const& expect) {
    Fp16 const fp16{.loss_scale = {.initial = 256.f}};
    O<PosG, Fp16, zero::Adam> optimizer{comm, {{.name = "w", .shape = {3000}}}, fp16};
    optimizer.adopt_parameters();
    auto gradients = optimizer.gradients(0);
    if (comm.rank() == 1) gradients[0][7] = zero::fp16(1e9f);
    optimizer.reduce(std::move(gradients));
    bool called = false;
    optimizer.change_gradients([&](auto const&, std::size_t, auto run, double) {
      called = true;
      std::fill(run.begin(), run.end(), zero::fp16(1.f));
    });
    auto const report = optimizer.step();
    expect(!called && report.skipped, "the step is skipped");
    expect(optimizer.loss_scale() == 128.f, "the scale has learnt");
  });
}

TEST_CASE("over memory that the host cannot reach a trainer gets pointers to it") {
  contracts::on_ranks(2, [](InProcess& inner, auto const& expect) {
    contracts::OnDevice<PosG, Fp16> rank(inner, {{.name = "w", .shape = {3000}}});
    auto& optimizer = rank.optimizer;
    constant_pass(rank, 2.f);
    optimizer.change_gradients([&](auto const&, std::size_t, auto run, double scale) {
      rank.fill(run, static_cast<float>(0.25 / scale));
    });
    std::size_t shown = 0;
    optimizer.visit_gradients([&](auto const&, std::size_t, auto run, double scale) {
      std::vector<zero::fp16> host(run.size());
      rank.space().download(host.data(), run.data(), run.size_bytes());
      for (zero::fp16 const g : host)
        shown += static_cast<double>(static_cast<float>(g)) * scale == 0.25;
    });
    expect(shown > 0 && shown < 3000, "a share");
    expect(optimizer.step().grad_norm == 0.25 * std::sqrt(3000.),
           "the norm is of what was changed");
  });
}

}  // namespace
}  // namespace gradients_test
