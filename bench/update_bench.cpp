/// How far the fused update is from what memory allows, and what small tensors cost.
///
/// Absolute rates mean nothing on a shared machine. Every round runs all kernels in turn; the
/// counters are medians over the rounds of ratios inside a round, and `best_` ratios of the fastest
/// rounds:
///
///     vs_same_traffic  speed over that of a kernel that moves the same bytes and computes next to
///                      nothing (goal 0.93)
///     vs_fp32          time over that of the same rule with states in fp32, on one thread (goal at
///                      most 1.5)
///     vs_triad         bytes per second over STREAM triad's
///     vs_plain_loop    speed over that of the obvious loop, compiled with this file's flags
///     cost_of_tensors  time as small tensors over time as one array (goal at most 1.10)
///     worst_over_best  time where the arrays lie worst over that where they lie best, of places
///                      that caches and memory may take for one; or time per element of the tensor
///                      of the worst size over that of the best, in an optimizer's step, which
///                      lays its own arrays (goal at most 1.05; one thread)
#include "formats.hpp"
#include "stream.hpp"
#include <zero/base/dtype.hpp>
#include <zero/bench/rule_bench.hpp>
#include <zero/kernel/half_away.hpp>
#include <zero/kernel/update.hpp>
#include <zero/rule/adamw.hpp>
#include <zero/zero.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace {

template <class P>
using AdamWArrays = bench::RuleArrays<zero::AdamW, P>;
template <class P>
using AdamWModel = bench::RuleModel<zero::AdamW, P>;
using zero::bf16;
using zero::fp16;
using zero::kernel::HalfAwayBf16;
using zero::kernel::RestOfMaster;
using zero::kernel::ShortRestOfMaster;
using zero::kernel::StochasticBf16;

constexpr std::size_t parameters = std::size_t{64} << 20;

/// AdamW as one would write it down.
template <class P>
void plain_loop(zero::AdamW const& rule, long step, AdamWArrays<P> const& a) {
  using M = zero::bench::MasterOf<P>;
  M* __restrict const p = a.master;
  P* __restrict const out = a.parameter;
  P const* __restrict const g = a.gradient;
  M* __restrict const m = a.state[0];
  M* __restrict const v = a.state[1];
  auto const beta1 = static_cast<M>(rule.beta1);
  auto const beta2 = static_cast<M>(rule.beta2);
  auto const lr = static_cast<M>(rule.lr);
  auto const decay = static_cast<M>(rule.weight_decay);
  auto const eps = static_cast<M>(rule.eps);
  M const one = 1;
  M const rate = lr / (one - std::pow(beta1, static_cast<M>(step)));
  M const root = one / std::sqrt(one - std::pow(beta2, static_cast<M>(step)));
  for (std::size_t i = 0; i < a.count; ++i) {
    M const gradient = zero::kernel::detail::convert<M>(g[i]) * M(0.5);
    m[i] = beta1 * m[i] + (one - beta1) * gradient;
    v[i] = beta2 * v[i] + (one - beta2) * gradient * gradient;
    p[i] -= lr * decay * p[i];
    p[i] -= rate * m[i] / (std::sqrt(v[i]) * root + eps);
    if constexpr (sizeof(P) == 2) out[i] = static_cast<P>(p[i]);
  }
}

/// The elements [first, first + count) of `all`.
template <class P>
AdamWArrays<P> piece(AdamWArrays<P> const& all, std::size_t first, std::size_t count) {
  return {.master = all.master + first,
          .parameter = all.parameter == nullptr ? nullptr : all.parameter + first,
          .gradient = all.gradient + first,
          .state = {all.state[0] + first, all.state[1] + first},
          .count = count};
}

template <class P>
void update(benchmark::State& state) {
  // As many bytes of each type.
  AdamWModel<P> model(parameters * sizeof(float) / sizeof(zero::bench::MasterOf<P>));
  bench::Triad triad;
  zero::AdamW const rule{};
  std::vector<double> updates, traffics, loops, triads;
  long step = 0;
  for (auto _ : state) {
    ++step;
    triads.push_back(model.bytes() / triad.round());  // as long as the triad would take for them
    traffics.push_back(model.timed([](auto const& arrays) { bench::same_traffic(arrays); }));
    using Number = zero::bench::MasterOf<P>;
    auto const scalars = rule.scalars(step, static_cast<Number>(rule.lr), Number(1), Number(1));
    updates.push_back(model.timed(
        [&](AdamWArrays<P> const& arrays) { zero::kernel::update(rule, scalars, 0.5f, arrays); }));
    loops.push_back(
        model.timed([&](AdamWArrays<P> const& arrays) { plain_loop(rule, step, arrays); }));
    state.SetIterationTime(updates.back());
  }
  state.counters["vs_same_traffic"] = bench::median_ratio(traffics, updates);
  state.counters["best_vs_same_traffic"] = bench::best_ratio(traffics, updates);
  state.counters["vs_triad"] = bench::median_ratio(triads, updates);
  state.counters["best_vs_triad"] = bench::best_ratio(triads, updates);
  state.counters["vs_plain_loop"] = bench::median_ratio(loops, updates);
  state.counters["triad_GB/s"] = triad.best() * 1e-9;
}

template <class P>
void small_tensors(benchmark::State& state) {
  auto const elements = static_cast<std::size_t>(state.range(0));
  AdamWModel<P> model(parameters / 4);
  zero::AdamW const rule{};
  std::vector<double> flats, tensors;
  long step = 0;
  for (auto _ : state) {
    ++step;
    auto const flat = [&] {
      flats.push_back(model.timed([&](AdamWArrays<P> const& arrays) {
        zero::kernel::update(
            rule, rule.scalars(step, static_cast<float>(rule.lr), 1.f, 1.f), 0.5f, arrays);
      }));
    };
    auto const pieces = [&] {
      tensors.push_back(model.timed([&](AdamWArrays<P> const& arrays) {
        for (std::size_t i = 0; i < arrays.count; i += elements) {
          // Every tensor has scalars of its own.
          auto const scalars =
              rule.scalars(step, static_cast<float>(rule.lr), 1.f, static_cast<float>(i % 2));
          std::size_t const count = std::min(elements, arrays.count - i);
          zero::kernel::update(rule, scalars, 0.5f, piece(arrays, i, count));
        }
      }));
    };
    // Who comes second finds other things in the caches: take turns.
    if (step % 2 == 0) {
      flat();
      pieces();
    } else {
      pieces();
      flat();
    }
    state.SetIterationTime(tensors.back());
  }
  state.counters["cost_of_tensors"] = bench::median_ratio(tensors, flats);
  state.counters["best_cost_of_tensors"] = bench::best_ratio(tensors, flats);
}

/// From seconds per element of several cases, by round.
void spread(benchmark::State& state, std::vector<std::vector<double>> const& times) {
  // The least of each: whatever else the machine does only adds.
  std::vector<double> least;
  for (auto const& of : times) least.push_back(*std::min_element(of.begin(), of.end()));
  auto const [best, worst] = std::minmax_element(least.begin(), least.end());
  state.counters["worst_over_best"] = *worst / *best;
  state.counters["best_ns_per_element"] = *best * 1e9;
}

/// The arrays in one piece of memory, so many bytes apart beyond their size, which is 2^26: then
/// their elements of the same index are congruent modulo 4 KiB, 64 KiB or 2 MiB, or next to it.
void placement(benchmark::State& state) {
  constexpr std::size_t count = std::size_t{1} << 24;
  constexpr std::size_t page = 4096;
  constexpr std::array<std::size_t, 9> gaps{0,
                                            64,
                                            1024,
                                            page + 256,
                                            2 * page,
                                            std::size_t{1} << 16,
                                            70144 * sizeof(float),
                                            std::size_t{1} << 20,
                                            std::size_t{1} << 21};
  std::size_t const bytes = 4 * (count * sizeof(float) + gaps.back());
  // Aligned to the largest distance, and to pages that large where the system has them.
  std::unique_ptr<std::byte, void (*)(void*)> const memory(
      static_cast<std::byte*>(std::aligned_alloc(std::size_t{1} << 21, bytes)), std::free);
  std::memset(memory.get(), 0, bytes);
  zero::AdamW const rule{};
  std::vector<std::vector<double>> times(gaps.size());
  long step = 0;
  for (auto _ : state) {
    ++step;
    double all = 0.;
    for (std::size_t g = 0; g < gaps.size(); ++g) {
      auto const array = [&](std::size_t k) {
        return reinterpret_cast<float*>(memory.get() + k * (count * sizeof(float) + gaps[g]));
      };
      AdamWArrays<float> const arrays{.master = array(0),
                                      .parameter = nullptr,
                                      .gradient = array(1),
                                      .state = {array(2), array(3)},
                                      .count = count};
      double const start = bench::seconds_now();
      zero::kernel::update(
          rule, rule.scalars(step, static_cast<float>(rule.lr), 1.f, 1.f), 0.5f, arrays);
      double const took = bench::seconds_now() - start;
      times[g].push_back(took / count);
      all += took;
    }
    state.SetIterationTime(all);
  }
  spread(state, times);
}

/// `step()` over one tensor of 2^24 elements, and of a power of two more.
void sizes(benchmark::State& state) {
  using Optimizer = zero::ShardedOptimizer<zero::Self, zero::AdamW>;
  zero::Self comm;
  std::vector<std::size_t> counts{std::size_t{1} << 24};
  for (std::size_t more = 512; more <= std::size_t{1} << 20; more *= 2) {
    counts.push_back(counts.front() + more);
  }
  std::vector<std::unique_ptr<Optimizer>> optimizers;
  for (std::size_t const count : counts) {
    std::vector<zero::Tensor> const model{{.name = "w", .shape = {count}}};
    optimizers.push_back(std::make_unique<Optimizer>(comm, model, zero::AdamW{}));
    optimizers.back()->adopt_parameters();
  }
  std::vector<std::vector<double>> times(counts.size());
  std::size_t round = 0;
  for (auto _ : state) {
    // Who comes first finds other things in the caches: another one each time, and a neighbour
    // another one too.
    std::size_t const stride = round % 2 == 0 ? 1 : counts.size() - 1;
    double all = 0.;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      std::size_t const chosen = (round + i * stride) % counts.size();
      Optimizer& optimizer = *optimizers[chosen];
      auto gradients = optimizer.gradients(0);
      std::fill(gradients[0].begin(), gradients[0].end(), 1e-3f);
      optimizer.reduce(std::move(gradients));
      double const start = bench::seconds_now();
      optimizer.step();
      double const took = bench::seconds_now() - start;
      times[chosen].push_back(took / static_cast<double>(counts[chosen]));
      all += took;
    }
    ++round;
    state.SetIterationTime(all);
  }
  spread(state, times);
}

BENCHMARK(placement)
    ->Name("placement/adamw/fp32")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(sizes)
    ->Name("sizes/adamw/fp32")
    ->UseManualTime()
    ->Iterations(24)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(update<float>)
    ->Name("update/adamw/fp32")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(update<double>)
    ->Name("update/adamw/fp64")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(update<bf16>)
    ->Name("update/adamw/bf16")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(update<fp16>)
    ->Name("update/adamw/fp16")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bench::update_format<RestOfMaster, HalfAwayBf16, float>)
    ->Name("update/adamw/bf16-rest16")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bench::update_format<ShortRestOfMaster, HalfAwayBf16, float>)
    ->Name("update/adamw/bf16-rest8")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bench::update_format<StochasticBf16, StochasticBf16, StochasticBf16>)
    ->Name("update/adamw/bf16-stochastic")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bench::eight_bits)
    ->Name("update/adamw8bit/fp32")
    ->UseManualTime()
    ->Iterations(15)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(small_tensors<float>)
    ->Name("small_tensors/adamw/fp32")
    ->ArgName("elements")
    ->Arg(1000)
    ->Arg(1024)
    ->UseManualTime()
    ->Iterations(31)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(small_tensors<bf16>)
    ->Name("small_tensors/adamw/bf16")
    ->ArgName("elements")
    ->Arg(1000)
    ->Arg(1024)
    ->UseManualTime()
    ->Iterations(31)
    ->Unit(benchmark::kMillisecond);

}  // namespace
