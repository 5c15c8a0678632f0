/// Collectives between processes: how much faster than the MPI library's own, how close to memory?
///
/// `algbw` and `busbw` are nccl-tests': S/t and S/t * (N-1)/N, where S is the full buffer of one
/// rank and t the time of the slowest rank. Four ways are timed in turn, round by round: zero::Mpi
/// with buffers in the shared window, with buffers outside of it, MPI_Reduce_scatter_block or
/// MPI_Allgather, and a STREAM triad on every rank. `traffic_over_triad` counts what has to move,
/// (N+1)S for a reduce-scatter and 2NS for an all-gather, over the triad's rate.
///
/// usage: mpirun -np N mpi_collective_bench [--min BYTES] [--max BYTES] [--rounds N]
#include "job.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

namespace {

using zero::Collective;
using zero::Op;

/// STREAM's triad in one process, counted by its convention.
class ProcessTriad {
 public:
  /// @return bytes of one run
  double operator()() {
    for (std::size_t i = 0; i < elements; ++i) a_[i] = b_[i] + 3.0f * c_[i];
    return 12. * elements;
  }

 private:
  static constexpr std::size_t elements = std::size_t{8} << 20;
  std::vector<float> a_ = std::vector<float>(elements, 0.f);
  std::vector<float> b_ = std::vector<float>(elements, 1.f);
  std::vector<float> c_ = std::vector<float>(elements, 2.f);
};

enum Way : std::size_t { window, outside, library, triad, ways };

void print(bench::Job const& job,
           std::array<double, ways> const& best,
           Op op,
           std::size_t bytes,
           std::array<std::vector<double>, ways> const& all,
           double triad_bytes) {
  auto const n = static_cast<double>(job.size);
  auto const s = static_cast<double>(bytes);
  auto const busbw = [&](Way way) { return s / best[way] * (n - 1) / n / 1e9; };
  std::vector<double> ratios;
  for (std::size_t i = 0; i < all[window].size(); ++i) {
    ratios.push_back(all[library][i] / all[window][i]);
  }
  double const traffic = op == Op::reduce_scatter ? (n + 1) * s : 2 * n * s;
  double const triad_rate = n * triad_bytes / best[triad];
  job.print("mpi_collective/" + std::string(zero::name(op)) + "/bytes:" + std::to_string(bytes) +
                "/ranks:" + std::to_string(job.size),
            {{"us", best[window] * 1e6},
             {"algbw", s / best[window] / 1e9},
             {"busbw", busbw(window)},
             {"outside_us", best[outside] * 1e6},
             {"outside_busbw", busbw(outside)},
             {"library_us", best[library] * 1e6},
             {"library_busbw", busbw(library)},
             {"vs_library", best[library] / best[window]},
             {"typical_vs_library", bench::median(ratios)},
             {"outside_vs_library", best[library] / best[outside]},
             {"traffic_over_triad", traffic / best[window] / triad_rate},
             {"triad_gbs", triad_rate / 1e9}});
}

void measure(bench::Job const& job, zero::Mpi<>& comm, Op op, std::size_t bytes, int rounds) {
  bool const reduces = op == Op::reduce_scatter;
  auto const n = static_cast<std::size_t>(job.size);
  std::size_t const block = bytes / sizeof(float) / n;
  std::size_t const send_count = reduces ? n * block : block;
  std::size_t const recv_count = reduces ? block : n * block;
  bench::Floats const near_send(comm.allocator(), send_count);
  bench::Floats const near_recv(comm.allocator(), recv_count);
  bench::Floats const far_send(zero::HostAllocator(), send_count);
  bench::Floats const far_recv(zero::HostAllocator(), recv_count);
  ProcessTriad stream;
  double triad_bytes = 0;
  int const repeat = std::max(1, static_cast<int>(4e6 / static_cast<double>(bytes)));
  auto const zero_way = [&](bench::Floats<zero::mpi::SharedAllocator> const* near) {
    Collective const work{.op = op,
                          .count = block,
                          .send = near != nullptr ? near_send.data() : far_send.data(),
                          .recv = near != nullptr ? near_recv.data() : far_recv.data()};
    for (int i = 0; i < repeat; ++i) zero::run(comm, work);
  };
  auto const library_way = [&] {
    auto const count = static_cast<int>(block);
    for (int i = 0; i < repeat; ++i) {
      if (reduces) {
        MPI_Reduce_scatter_block(
            far_send.data(), far_recv.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      } else {
        MPI_Allgather(
            far_send.data(), count, MPI_FLOAT, far_recv.data(), count, MPI_FLOAT, MPI_COMM_WORLD);
      }
    }
  };
  std::array<std::vector<double>, ways> all;
  std::array<double, ways> best;
  best.fill(std::numeric_limits<double>::infinity());
  for (int round = -1; round < rounds; ++round) {
    std::array<double, ways> now{};
    now[window] = job.timed([&] { zero_way(&near_send); }) / repeat;
    now[outside] = job.timed([&] { zero_way(nullptr); }) / repeat;
    now[library] = job.timed(library_way) / repeat;
    now[triad] = job.timed([&] { triad_bytes = stream(); });
    if (round < 0) continue;
    for (std::size_t way = 0; way < ways; ++way) {
      best[way] = std::min(best[way], now[way]);
      all[way].push_back(now[way]);
    }
  }
  print(job, best, op, bytes, all, triad_bytes);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_job(argc, argv, [&](bench::Job const& job) {
    auto const smallest = bench::argument(argc, argv, "--min", 1024);
    auto const largest = bench::argument(argc, argv, "--max", 256 * zero::MiB);
    auto const rounds = static_cast<int>(bench::argument(argc, argv, "--rounds", 10));
    auto const bytes = static_cast<std::size_t>(largest);
    zero::Mpi<> comm(MPI_COMM_WORLD, {.shared_bytes = 2 * bytes + zero::MiB});
    for (Op const op : {Op::reduce_scatter, Op::all_gather}) {
      for (auto size = static_cast<std::size_t>(smallest); size <= bytes; size *= 4) {
        measure(job, comm, op, size, rounds);
      }
    }
    comm.close();
  });
}
