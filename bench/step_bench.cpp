/// Whole steps: what does a stage cost beside data parallelism written by hand?
///
/// The raw baseline is what one writes without a library, built from this library's own kernels so
/// that only the schedule differs: every rank sums its slice of all gradients, copies everybody's
/// slices, updates all parameters with a full Adam and zeroes its gradients. A step of a stage is
/// everything after the backward pass: reduction, norm, update, publication, zeroing; for Pos+g+p
/// also the gathers of a forward and a backward pass. Both run in turn, in one process.
/// Rows of lent memory are of a trainer that has gradients and parameters of its own, and zeroes
/// its gradients itself. `exposed_ms` is the time per step of the slowest rank inside the
/// communicator: what nothing hides. `gathers` holds Pos+g+p beside Pos+g at two ranks.
#include "stream.hpp"
#include "zero/zero.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int ranks = 4;
constexpr std::size_t units = 8;
constexpr std::size_t unit_elements = std::size_t{2} << 20;
constexpr std::size_t elements = units * unit_elements;

std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  for (std::size_t u = 0; u < units; ++u) {
    tensors.push_back(
        {.name = "w" + std::to_string(u), .shape = {unit_elements}, .unit = static_cast<int>(u)});
  }
  return tensors;
}

/// Replicated training by hand: [elements] of everything on every rank.
template <class Precision>
class Raw {
 public:
  using Parameter = typename Precision::Parameter;
  using Wire = typename Precision::Wire;
  using Master = typename Precision::Master;
  using State = typename Precision::State;

  explicit Raw(bench::Team& team) : barrier_(ranks), ranks_(ranks) {
    team.run([&](int rank) {
      Rank& own = ranks_[static_cast<std::size_t>(rank)];
      own.parameters.assign(elements, Parameter(0.5f));
      own.gradients.assign(elements, Wire(0.f));
      if constexpr (zero::has_master<Precision>) own.master.assign(elements, Master(0.5f));
      for (auto& state : own.states) state.assign(elements, State(0.f));
    });
  }

  void step(int rank) {
    constexpr std::size_t slice = elements / ranks;
    auto const r = static_cast<std::size_t>(rank);
    Rank& own = ranks_[r];
    std::array<Wire const*, ranks> inputs{};
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      inputs[peer] = ranks_[peer].gradients.data() + r * slice;
    }
    barrier_.arrive_and_wait();
    zero::kernel::sum_ranks<Wire, typename Precision::Accumulate>(
        own.gradients.data() + r * slice, inputs.data(), ranks, slice);
    barrier_.arrive_and_wait();
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      zero::kernel::copy(own.gradients.data() + peer * slice,
                         ranks_[peer].gradients.data() + peer * slice,
                         slice * sizeof(Wire));
    }
    barrier_.arrive_and_wait();
    zero::kernel::UpdateArrays<Master, Parameter, Wire, State, 2> arrays{
        .gradient = own.gradients.data(),
        .state = {own.states[0].data(), own.states[1].data()},
        .count = elements};
    if constexpr (zero::has_master<Precision>) {
      arrays.master = own.master.data();
      arrays.parameter = own.parameters.data();
    } else {
      arrays.master = own.parameters.data();
    }
    auto const scalars =
        rule_.scalars(++steps_[r], static_cast<Master>(rule_.lr), Master(1), Master(1));
    zero::kernel::update(rule_, scalars, 0.25, arrays);
    zero::kernel::clear(own.gradients.data(), elements * sizeof(Wire));
    barrier_.arrive_and_wait();
  }

 private:
  struct Rank {
    std::vector<Parameter> parameters;
    std::vector<Wire> gradients;
    std::vector<Master> master;
    std::array<std::vector<State>, 2> states;
  };
  std::barrier<> barrier_;
  std::vector<Rank> ranks_;
  std::array<long, ranks> steps_{};
  zero::AdamW rule_;
};

/// Training by the library, one optimizer for each rank of a team.
template <class Stage, class Precision, class Memory>
class Staged {
 public:
  using Comm = zero::Traced<zero::InProcess>;

  explicit Staged(bench::Team& team)
      : handles_(zero::InProcess::group(team.size())),
        comms_(handles_.begin(), handles_.end()),
        optimizers_(handles_.size()),
        lent_(handles_.size()) {
    team.run([&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      optimizers_[r] = std::make_unique<Optimizer>(comms_[r], model());
      if constexpr (Optimizer::borrowed) {
        lent_[r].parameters.assign(elements, Parameter(0.5f));
        lent_[r].gradients.assign(elements, Wire(0.f));
        optimizers_[r]->bind(std::span(lent_[r].parameters), std::span(lent_[r].gradients));
      }
      optimizers_[r]->load_parameters([](zero::Tensor const&, std::size_t, auto out) {
        std::fill(out.begin(), out.end(), Master(0.5f));
      });
    });
  }

  void step(int rank) {
    auto const r = static_cast<std::size_t>(rank);
    Optimizer& optimizer = *optimizers_[r];
    for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit).size());
    for (int const unit : optimizer.units_backward()) {
      auto const weights = optimizer.parameters(unit);
      optimizer.reduce(optimizer.gradients(unit));
    }
    optimizer.step();
    if constexpr (Optimizer::borrowed) {
      zero::kernel::clear(lent_[r].gradients.data(), elements * sizeof(Wire));
    }
  }

  /// Seconds of the slowest rank inside the communicator since the last call.
  double exposed() {
    double slowest = 0.;
    for (Comm& comm : comms_) {
      slowest = std::max(slowest, comm.seconds_inside());
      comm.reset_seconds();
    }
    return slowest;
  }

 private:
  using Optimizer = zero::ShardedOptimizer<Comm, Stage, Precision, Memory>;
  using Parameter = typename Precision::Parameter;
  using Wire = typename Precision::Wire;
  using Master = typename Precision::Master;
  struct Lent {
    std::vector<Parameter> parameters;
    std::vector<Wire> gradients;
  };
  std::vector<zero::InProcess> handles_;
  std::vector<Comm> comms_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
  std::vector<Lent> lent_;
};

template <class Trainer>
double timed(bench::Team& team, Trainer& trainer) {
  double const start = bench::seconds_now();
  team.run([&](int rank) { trainer.step(rank); });
  return bench::seconds_now() - start;
}

template <class Stage, class Precision, class Memory>
void step(benchmark::State& state) {
  bench::Team team(ranks);
  Staged<Stage, Precision, Memory> staged(team);
  Raw<Precision> raw(team);
  timed(team, staged);
  timed(team, raw);
  staged.exposed();
  std::vector<double> ratios;
  std::vector<double> inside;
  double best = 1e9;
  double best_raw = 1e9;
  for (auto _ : state) {
    double const raw_seconds = timed(team, raw);
    double const seconds = timed(team, staged);
    state.SetIterationTime(seconds);
    inside.push_back(staged.exposed());
    ratios.push_back(seconds / raw_seconds);
    best = std::min(best, seconds);
    best_raw = std::min(best_raw, raw_seconds);
  }
  state.counters["vs_replicated"] = benchmark::Counter(bench::median(ratios));
  state.counters["best_vs_best"] = benchmark::Counter(best / best_raw);
  state.counters["exposed_ms"] = benchmark::Counter(bench::median(inside) * 1e3);
  state.counters["raw_ms"] = benchmark::Counter(best_raw * 1e3);
}

/// What gathering parameters twice adds to a step, where a rank owns half of everything.
template <class Precision>
void gathers(benchmark::State& state) {
  bench::Team team(2);
  Staged<zero::stage::PosG, Precision, zero::Owned<>> held(team);
  Staged<zero::stage::PosGP, Precision, zero::Owned<>> gathered(team);
  timed(team, held);
  timed(team, gathered);
  std::vector<double> ratios;
  for (auto _ : state) {
    double const seconds_held = timed(team, held);
    double const seconds = timed(team, gathered);
    state.SetIterationTime(seconds);
    ratios.push_back(seconds / seconds_held);
  }
  state.counters["vs_pos+g"] = benchmark::Counter(bench::median(ratios));
}

template <class Stage, class Precision, class Memory = zero::Owned<>>
void add(std::string const& name) {
  benchmark::RegisterBenchmark(("step/" + name).c_str(), step<Stage, Precision, Memory>)
      ->UseManualTime()
      ->Iterations(15)
      ->Unit(benchmark::kMillisecond);
}

[[maybe_unused]] bool const added = [] {
  add<zero::stage::Replicated, zero::Fp32>("fp32/replicated");
  add<zero::stage::Pos, zero::Fp32>("fp32/pos");
  add<zero::stage::PosG, zero::Fp32>("fp32/pos+g");
  add<zero::stage::PosGP, zero::Fp32>("fp32/pos+g+p");
  add<zero::stage::Replicated, zero::Mixed<zero::bf16>>("bf16/replicated");
  add<zero::stage::Pos, zero::Mixed<zero::bf16>>("bf16/pos");
  add<zero::stage::PosG, zero::Mixed<zero::bf16>>("bf16/pos+g");
  add<zero::stage::PosGP, zero::Mixed<zero::bf16>>("bf16/pos+g+p");
  add<zero::stage::PosG, zero::Fp32, zero::Borrowed<>>("fp32/pos+g/lent");
  add<zero::stage::PosG, zero::Fp32, zero::BorrowedInPlace<>>("fp32/pos+g/lent_in_place");
  add<zero::stage::PosG, zero::Fp64>("fp64/pos+g");
  benchmark::RegisterBenchmark("gathers/fp32/ranks:2", gathers<zero::Fp32>)
      ->UseManualTime()
      ->Iterations(15)
      ->Unit(benchmark::kMillisecond);
  return true;
}();

}  // namespace
