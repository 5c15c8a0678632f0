/// Bytes of a bucket: how do they change a step, and what do they cost in memory?
///
/// A GPT-like model with AdamW on two ranks of one process. A step is everything after the backward
/// pass, and for Pos+g+p the gathers of a forward and a backward pass. Each bucket size runs in
/// turn with the default one and with the raw baseline, in one process: `vs_default` and `vs_raw`
/// are medians of the ratios of neighbours. The raw baseline has no buckets at all: each rank sums
/// its half of all gradients, updates it and copies the other half, by this library's kernels.
/// `held_MiB` is what a rank holds, `lent_staging_MiB` what it would hold for buckets if the
/// trainer lent its memory, `buckets` what it sends one by one.
#include "stream.hpp"
#include "zero/zero.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

constexpr int ranks = 2;
constexpr std::size_t hidden = 768;
constexpr std::size_t vocabulary = 16384;
constexpr int layers = 3;
constexpr int rounds = 24;

/// Embeddings, layers as they are in GPT-2, and a head: a unit each. 48 million parameters.
std::vector<zero::Tensor> model() {
  std::vector<zero::Tensor> tensors;
  auto const add = [&](int unit, std::vector<std::size_t> shape) {
    tensors.push_back({.name = std::to_string(tensors.size()), .shape = shape, .unit = unit});
  };
  add(0, {vocabulary, hidden});
  add(0, {1024, hidden});
  for (int layer = 1; layer <= layers; ++layer) {
    for (std::size_t const wide : {3u, 1u, 4u}) {
      add(layer, {hidden, wide * hidden});
      add(layer, {wide * hidden});
    }
    add(layer, {4 * hidden, hidden});
    for (int vectors = 0; vectors < 5; ++vectors) add(layer, {hidden});
  }
  add(layers + 1, {hidden});
  add(layers + 1, {hidden});
  add(layers + 1, {vocabulary, hidden});
  return tensors;
}

std::size_t elements() {
  std::size_t sum = 0;
  for (auto const& tensor : model()) sum += zero::element_count(tensor);
  return sum / 32 * 32;
}

/// Data parallelism with a shared update, by hand: [elements] of parameters and gradients.
class Raw {
 public:
  explicit Raw(bench::Team& team) : barrier_(ranks), ranks_(ranks) {
    team.run([&](int rank) {
      Rank& own = ranks_[static_cast<std::size_t>(rank)];
      own.parameters.assign(count_, 0.5f);
      own.gradients.assign(count_, 0.f);
      for (auto& state : own.states) state.assign(count_ / ranks, 0.f);
    });
  }

  void step(int rank) {
    std::size_t const half = count_ / ranks;
    auto const r = static_cast<std::size_t>(rank);
    Rank& own = ranks_[r];
    std::array<float const*, ranks> inputs{};
    for (std::size_t peer = 0; peer < ranks; ++peer) {
      inputs[peer] = ranks_[peer].gradients.data() + r * half;
    }
    barrier_.arrive_and_wait();
    zero::kernel::sum_ranks<float, float>(
        own.gradients.data() + r * half, inputs.data(), ranks, half);
    zero::kernel::UpdateArrays<float, float, float, float, 2> const arrays{
        .master = own.parameters.data() + r * half,
        .gradient = own.gradients.data() + r * half,
        .state = {own.states[0].data(), own.states[1].data()},
        .count = half};
    zero::kernel::update(
        rule_, rule_.scalars(++own.steps, static_cast<float>(rule_.lr), 1.f, 1.f), 0.5f, arrays);
    barrier_.arrive_and_wait();
    std::size_t const other = (1 - r) * half;
    zero::kernel::copy(own.parameters.data() + other,
                       ranks_[1 - r].parameters.data() + other,
                       half * sizeof(float));
    zero::kernel::clear(own.gradients.data(), count_ * sizeof(float));
    barrier_.arrive_and_wait();
  }

 private:
  struct Rank {
    std::vector<float> parameters;
    std::vector<float> gradients;
    std::array<std::vector<float>, 2> states;
    long steps = 0;
  };
  std::size_t count_ = elements();
  std::barrier<> barrier_;
  std::vector<Rank> ranks_;
  zero::AdamW rule_;
};

/// Training by the library, one optimizer for each rank of a team.
template <class Stage>
class Staged {
 public:
  Staged(bench::Team& team, zero::Bucket bucket)
      : comms_(zero::InProcess::group(team.size())), optimizers_(comms_.size()) {
    team.run([&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      optimizers_[r] = std::make_unique<Optimizer>(comms_[r], model(), bucket);
      optimizers_[r]->load_parameters([](zero::Tensor const&, std::size_t, std::span<float> out) {
        std::fill(out.begin(), out.end(), 0.5f);
      });
    });
  }

  void step(int rank) {
    Optimizer& optimizer = *optimizers_[static_cast<std::size_t>(rank)];
    for (int const unit : optimizer.units()) static_cast<void>(optimizer.parameters(unit).size());
    for (int const unit : optimizer.units_backward()) {
      auto const weights = optimizer.parameters(unit);
      optimizer.reduce(optimizer.gradients(unit));
    }
    optimizer.step();
  }

  [[nodiscard]] zero::Partition const& partition() const { return optimizers_[0]->partition(); }
  [[nodiscard]] std::uint64_t held() const { return optimizers_[0]->held().total(); }

 private:
  using Optimizer = zero::ShardedOptimizer<zero::InProcess, Stage>;
  std::vector<zero::InProcess> comms_;
  std::vector<std::unique_ptr<Optimizer>> optimizers_;
};

template <class Trainer>
double timed(bench::Team& team, Trainer& trainer) {
  double const start = bench::seconds_now();
  team.run([&](int rank) { trainer.step(rank); });
  return bench::seconds_now() - start;
}

/// Half of the rounds each with one of two constructed first: which pages a trainer got first makes
/// up to 15 hundredths of its time, more than most sizes differ.
template <class Stage>
void bucket_bytes(benchmark::State& state) {
  zero::Bucket const bucket{static_cast<std::size_t>(state.range(0)) * zero::KiB};
  bench::Team team(ranks);
  Raw raw(team);
  std::array<std::vector<double>, 2> to_usual;
  std::vector<double> to_raw;
  std::unique_ptr<Staged<Stage>> sized;
  std::unique_ptr<Staged<Stage>> usual;
  for (auto _ : state) {
    std::size_t const half = to_raw.size() < rounds / 2 ? 0 : 1;
    if (to_raw.size() % (rounds / 2) == 0) {
      sized.reset();
      usual.reset();
      if (half == 0) sized = std::make_unique<Staged<Stage>>(team, bucket);
      usual = std::make_unique<Staged<Stage>>(team, zero::Bucket{});
      if (half == 1) sized = std::make_unique<Staged<Stage>>(team, bucket);
      timed(team, *sized);
      timed(team, *usual);
      timed(team, raw);
    }
    double const before = timed(team, *usual);
    double const seconds = timed(team, *sized);
    double const after = timed(team, *usual);
    double const raw_seconds = timed(team, raw);
    state.SetIterationTime(seconds);
    to_usual[half].push_back(2 * seconds / (before + after));
    to_raw.push_back(seconds / raw_seconds);
  }
  state.counters["vs_default"] =
      benchmark::Counter(std::sqrt(bench::median(to_usual[0]) * bench::median(to_usual[1])));
  state.counters["vs_raw"] = benchmark::Counter(bench::median(to_raw));
  state.counters["held_MiB"] =
      benchmark::Counter(static_cast<double>(sized->held()) / static_cast<double>(zero::MiB));
  if constexpr (!Stage::sharding.parameters) {
    using Lent = zero::ShardedOptimizer<zero::InProcess, Stage, zero::Borrowed<>>;
    auto const plan = Lent::plan({.world_size = ranks}, model(), bucket);
    state.counters["lent_staging_MiB"] = benchmark::Counter(
        static_cast<double>(plan.memory[zero::Role::staging]) / static_cast<double>(zero::MiB));
  }
  state.counters["buckets"] =
      benchmark::Counter(static_cast<double>(sized->partition().bucket_count()));
}

template <class Stage>
void add(std::string const& name) {
  auto* const family =
      benchmark::RegisterBenchmark(("bucket/" + name).c_str(), bucket_bytes<Stage>);
  family->ArgName("KiB")->UseManualTime()->Iterations(rounds)->Unit(benchmark::kMillisecond);
  for (long const kib : {64L, 256L, 1024L, 4096L, 16384L, 25600L, 65536L, 262144L}) {
    family->Arg(kib);
  }
}

[[maybe_unused]] bool const added = [] {
  add<zero::stage::PosG>("pos+g");
  add<zero::stage::PosGP>("pos+g+p");
  return true;
}();

}  // namespace
