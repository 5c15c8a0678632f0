/// In-process collectives: how close to the memory's speed?
///
/// `algbw` and `busbw` are nccl-tests': S/t and S/t * (N-1)/N, where S is the full buffer of one
/// rank. `traffic_over_triad` counts what has to move, (N+1)S for reduce_scatter and 2NS for
/// all_gather, and divides its rate by that of a STREAM triad timed in turn with it.
/// The raw baselines are what one writes without a library: a loop and memcpy between two barriers.
#include "stream.hpp"
#include "zero/base/bytes.hpp"
#include "zero/comm/in_process.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using zero::Collective;
using zero::InProcess;
using zero::Op;

bench::Triad& triad() {
  static bench::Triad instance;
  return instance;
}

/// One collective among threads that stay: the library's, and a plain loop between barriers.
class Work {
 public:
  Work(Op op, std::size_t bytes, int ranks)
      : reduces_(op == Op::reduce_scatter),
        ranks_(static_cast<std::size_t>(ranks)),
        block_(bytes / sizeof(float) / ranks_),
        op_{.op = op, .count = block_},
        team_(ranks),
        send_(ranks_),
        recv_(ranks_),
        handles_(InProcess::group(ranks)),
        barrier_(ranks) {
    // Touched first by the rank that owns them.
    team_.run([&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      send_[r].assign(reduces_ ? ranks_ * block_ : block_, 1.0f);
      recv_[r].assign(reduces_ ? block_ : ranks_ * block_, 0.0f);
    });
  }

  /// Bytes to read and write: see above.
  [[nodiscard]] double traffic() const {
    auto const ranks = static_cast<double>(ranks_);
    return (reduces_ ? ranks + 1 : 2 * ranks) * ranks * static_cast<double>(block_ * sizeof(float));
  }

  /// Each returns the seconds that `repeat` collectives in a row take.
  double library(int repeat) {
    return timed([&](std::size_t r) {
      Collective work = op_;
      work.send = send_[r].data();
      work.recv = recv_[r].data();
      for (int i = 0; i < repeat; ++i) zero::run(handles_[r], work);
    });
  }
  double raw(int repeat) {
    return timed([&](std::size_t r) {
      float* const out = recv_[r].data();
      for (int turn = 0; turn < repeat; ++turn) {
        for (std::size_t peer = 0; peer < ranks_; ++peer) {
          float const* const in = send_[peer].data();
          if (!reduces_) {
            std::memcpy(out + peer * block_, in, block_ * sizeof(float));
          } else if (peer == 0) {
            std::memcpy(out, in + r * block_, block_ * sizeof(float));
          } else {
            for (std::size_t i = 0; i < block_; ++i) out[i] += in[r * block_ + i];
          }
        }
        barrier_.arrive_and_wait();
      }
    });
  }

 private:
  template <class Loop>
  double timed(Loop const& loop) {
    double seconds = 0;
    team_.run([&](int rank) {
      barrier_.arrive_and_wait();
      double const start = bench::seconds_now();
      loop(static_cast<std::size_t>(rank));
      if (rank == 0) seconds = bench::seconds_now() - start;
    });
    return seconds;
  }

  bool reduces_;
  std::size_t ranks_;
  std::size_t block_;
  Collective op_;
  bench::Team team_;
  std::vector<std::vector<float>> send_;
  std::vector<std::vector<float>> recv_;
  std::vector<InProcess> handles_;
  std::barrier<> barrier_;
};

using Side = double (Work::*)(int repeat);

/// Beside a triad, often enough that the clock and the wake-up do not show.
void stream(benchmark::State& state, Op op, Side side) {
  auto const bytes = static_cast<double>(state.range(0));
  auto const ranks = static_cast<int>(state.range(1));
  Work work(op, static_cast<std::size_t>(state.range(0)), ranks);
  auto const repeat = static_cast<int>(std::max(1.0, 4e6 / bytes));
  (work.*side)(repeat);
  bench::Interleaved interleaved(triad());
  double fastest = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    double const seconds =
        interleaved.round(work.traffic() * repeat, [&] { return (work.*side)(repeat); });
    state.SetIterationTime(seconds / repeat);
    fastest = std::min(fastest, seconds / repeat);
  }
  state.counters["algbw"] = benchmark::Counter(bytes / fastest);
  state.counters["busbw"] = benchmark::Counter(bytes / fastest * (ranks - 1) / ranks);
  state.counters["triad"] = benchmark::Counter(interleaved.triad());
  state.counters["traffic_over_triad"] = benchmark::Counter(interleaved.best());
  state.counters["typical_over_triad"] = benchmark::Counter(interleaved.typical());
}

/// Beside the plain loop: runs of about a millisecond in turn. `us` is the median time of the
/// library's collective, `raw_us` of the loop's, `vs_raw` the median ratio of neighbours.
void small(benchmark::State& state, Op op) {
  auto const bytes = static_cast<double>(state.range(0));
  Work work(op, static_cast<std::size_t>(state.range(0)), static_cast<int>(state.range(1)));
  auto const repeat = static_cast<int>(std::max(1.0, std::min(200.0, 32e6 / bytes)));
  work.library(repeat);
  work.raw(repeat);
  std::vector<double> library;
  std::vector<double> raw;
  std::vector<double> ratios;
  for (auto _ : state) {
    library.push_back(work.library(repeat) / repeat);
    raw.push_back(work.raw(repeat) / repeat);
    ratios.push_back(library.back() / raw.back());
    state.SetIterationTime(library.back());
  }
  state.counters["us"] = benchmark::Counter(bench::median(library) * 1e6);
  state.counters["raw_us"] = benchmark::Counter(bench::median(raw) * 1e6);
  state.counters["vs_raw"] = benchmark::Counter(bench::median(ratios));
}

void sizes(benchmark::internal::Benchmark* it) {
  it->ArgNames({"bytes", "ranks"})->UseManualTime()->Iterations(20)->Unit(benchmark::kMicrosecond);
  for (std::int64_t const ranks : {2, 4}) {
    for (std::size_t bytes = zero::KiB; bytes <= 256 * zero::MiB; bytes *= 4) {
      it->Args({static_cast<std::int64_t>(bytes), ranks});
    }
  }
}

void small_sizes(benchmark::internal::Benchmark* it) {
  it->ArgNames({"bytes", "ranks"})->UseManualTime()->Iterations(50)->Unit(benchmark::kMicrosecond);
  for (std::int64_t const ranks : {2, 8}) {
    for (std::size_t bytes = zero::KiB; bytes <= 4 * zero::MiB; bytes *= 4) {
      it->Args({static_cast<std::int64_t>(bytes), ranks});
    }
  }
}

void collective(benchmark::State& state, Op op) { stream(state, op, &Work::library); }
void raw(benchmark::State& state, Op op) { stream(state, op, &Work::raw); }

BENCHMARK_CAPTURE(collective, reduce_scatter, Op::reduce_scatter)->Apply(sizes);
BENCHMARK_CAPTURE(collective, all_gather, Op::all_gather)->Apply(sizes);
BENCHMARK_CAPTURE(raw, reduce_scatter, Op::reduce_scatter)->Apply(sizes);
BENCHMARK_CAPTURE(raw, all_gather, Op::all_gather)->Apply(sizes);
BENCHMARK_CAPTURE(small, reduce_scatter, Op::reduce_scatter)->Apply(small_sizes);
BENCHMARK_CAPTURE(small, all_gather, Op::all_gather)->Apply(small_sizes);

}  // namespace
