/// What a trainer loses that compiles with plain -O2 and no flag for mathematics.
///
///     vs_tuned       speed of the plain build over that of the tuned one, the median over rounds
///                    that run both in turn (goal 0.80)
///     best_vs_tuned  the same of the fastest rounds
#include "../stream.hpp"
#include "builds.hpp"
#include "zero/bench/rule_bench.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <vector>

namespace {

constexpr std::size_t parameters = std::size_t{64} << 20;

template <class P>
void consumer_flags(benchmark::State& state,
                    bench::Build::Update<P> plain,
                    bench::Build::Update<P> tuned) {
  bench::RuleModel<zero::AdamW, P> model(parameters);
  std::vector<double> plains, tuneds;
  long step = 0;
  for (auto _ : state) {
    ++step;
    auto const run = [&](bench::Build::Update<P> update) {
      return model.timed([&](bench::RuleArrays<zero::AdamW, P> const& a) {
        update(step, a.master, a.parameter, a.gradient, a.state.data(), a.count);
      });
    };
    tuneds.push_back(run(tuned));
    plains.push_back(run(plain));
    state.SetIterationTime(plains.back());
  }
  state.counters["vs_tuned"] = bench::median_ratio(tuneds, plains);
  state.counters["best_vs_tuned"] = bench::best_ratio(tuneds, plains);
}

void fp32(benchmark::State& state) {
  consumer_flags<float>(state, bench::plain_build.fp32, bench::tuned_build.fp32);
}
void bf16(benchmark::State& state) {
  consumer_flags<zero::bf16>(state, bench::plain_build.bf16, bench::tuned_build.bf16);
}
void fp16(benchmark::State& state) {
  consumer_flags<zero::fp16>(state, bench::plain_build.fp16, bench::tuned_build.fp16);
}

BENCHMARK(fp32)
    ->Name("consumer_flags/adamw/fp32")
    ->UseManualTime()
    ->Iterations(21)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(bf16)
    ->Name("consumer_flags/adamw/bf16")
    ->UseManualTime()
    ->Iterations(21)
    ->Unit(benchmark::kMillisecond);
BENCHMARK(fp16)
    ->Name("consumer_flags/adamw/fp16")
    ->UseManualTime()
    ->Iterations(21)
    ->Unit(benchmark::kMillisecond);

}  // namespace
