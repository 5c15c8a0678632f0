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

/// Buffers of one group, touched first by the rank that owns them.
struct Buffers {
  std::vector<std::vector<float>> send;
  std::vector<std::vector<float>> recv;

  Buffers(bench::Team& team, std::size_t send_count, std::size_t recv_count)
      : send(static_cast<std::size_t>(team.size())), recv(send.size()) {
    team.run([&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      send[r].assign(send_count, 1.0f);
      recv[r].assign(recv_count, 0.0f);
    });
  }
};

/// Times `repeat` collectives in a row, often enough that the clock and the wake-up do not show.
template <class Round>
void measure(benchmark::State& state, double traffic_of_one, double bytes, Round const& round) {
  auto const repeat = static_cast<int>(std::max(1.0, 4e6 / bytes));
  round(repeat);
  bench::Interleaved interleaved(triad());
  double fastest = std::numeric_limits<double>::infinity();
  for (auto _ : state) {
    double const seconds =
        interleaved.round(traffic_of_one * repeat, [&] { return round(repeat); });
    state.SetIterationTime(seconds / repeat);
    fastest = std::min(fastest, seconds / repeat);
  }
  auto const ranks = static_cast<double>(state.range(1));
  state.counters["algbw"] = benchmark::Counter(bytes / fastest);
  state.counters["busbw"] = benchmark::Counter(bytes / fastest * (ranks - 1) / ranks);
  state.counters["triad"] = benchmark::Counter(interleaved.triad());
  state.counters["traffic_over_triad"] = benchmark::Counter(interleaved.best());
  state.counters["typical_over_triad"] = benchmark::Counter(interleaved.typical());
}

void collective(benchmark::State& state, Op op) {
  auto const bytes = static_cast<std::size_t>(state.range(0));
  auto const ranks = static_cast<std::size_t>(state.range(1));
  bool const reduces = op == Op::reduce_scatter;
  std::size_t const whole = bytes / sizeof(float);
  std::size_t const block = whole / ranks;
  bench::Team team(static_cast<int>(ranks));
  Buffers buffers(team, reduces ? whole : block, reduces ? block : whole);
  std::vector<InProcess> handles = InProcess::group(static_cast<int>(ranks));
  auto const round = [&](int repeat) {
    double seconds = 0;
    team.run([&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      Collective const work{
          .op = op, .count = block, .send = buffers.send[r].data(), .recv = buffers.recv[r].data()};
      // The empty collective lets all ranks start together.
      zero::run(handles[r], {.op = op});
      double const start = bench::seconds_now();
      for (int i = 0; i < repeat; ++i) zero::run(handles[r], work);
      if (rank == 0) seconds = bench::seconds_now() - start;
    });
    return seconds;
  };
  double const factor = reduces ? static_cast<double>(ranks) + 1 : 2 * static_cast<double>(ranks);
  measure(state, factor * static_cast<double>(bytes), static_cast<double>(bytes), round);
}

void raw(benchmark::State& state, Op op) {
  auto const bytes = static_cast<std::size_t>(state.range(0));
  auto const ranks = static_cast<std::size_t>(state.range(1));
  bool const reduces = op == Op::reduce_scatter;
  std::size_t const whole = bytes / sizeof(float);
  std::size_t const block = whole / ranks;
  bench::Team team(static_cast<int>(ranks));
  Buffers buffers(team, reduces ? whole : block, reduces ? block : whole);
  std::barrier barrier(static_cast<std::ptrdiff_t>(ranks));
  auto const round = [&](int repeat) {
    double seconds = 0;
    team.run([&](int rank) {
      auto const r = static_cast<std::size_t>(rank);
      float* const out = buffers.recv[r].data();
      barrier.arrive_and_wait();
      double const start = bench::seconds_now();
      for (int turn = 0; turn < repeat; ++turn) {
        for (std::size_t peer = 0; peer < ranks; ++peer) {
          float const* const in = buffers.send[peer].data();
          if (!reduces) {
            std::memcpy(out + peer * block, in, block * sizeof(float));
          } else if (peer == 0) {
            std::memcpy(out, in + r * block, block * sizeof(float));
          } else {
            for (std::size_t i = 0; i < block; ++i) out[i] += in[r * block + i];
          }
        }
        barrier.arrive_and_wait();
      }
      if (rank == 0) seconds = bench::seconds_now() - start;
    });
    return seconds;
  };
  double const factor = reduces ? static_cast<double>(ranks) + 1 : 2 * static_cast<double>(ranks);
  measure(state, factor * static_cast<double>(bytes), static_cast<double>(bytes), round);
}

void sizes(benchmark::internal::Benchmark* it) {
  it->ArgNames({"bytes", "ranks"})->UseManualTime()->Iterations(20)->Unit(benchmark::kMicrosecond);
  for (std::int64_t const ranks : {2, 4}) {
    for (std::size_t bytes = zero::KiB; bytes <= 256 * zero::MiB; bytes *= 4) {
      it->Args({static_cast<std::int64_t>(bytes), ranks});
    }
  }
}

BENCHMARK_CAPTURE(collective, reduce_scatter, Op::reduce_scatter)->Apply(sizes);
BENCHMARK_CAPTURE(collective, all_gather, Op::all_gather)->Apply(sizes);
BENCHMARK_CAPTURE(raw, reduce_scatter, Op::reduce_scatter)->Apply(sizes);
BENCHMARK_CAPTURE(raw, all_gather, Op::all_gather)->Apply(sizes);

}  // namespace
