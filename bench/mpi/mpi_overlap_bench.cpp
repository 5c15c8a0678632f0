/// Overlap between processes: how much of a collective hides behind computation?
///
/// A collective of 64 MB is started, computation goes on that takes as long as the collective takes
/// alone, `progress` is called after every 2000 multiplications of it, and then the collective is
/// waited for. Two figures, of the fastest of several rounds each:
/// - hidden_by_clock: the computation ends when the time is over; 1 - time in the wait over the
/// time
///   of the collective alone. Says that the collective advances before it is waited for; the time
///   that `progress` takes is the computation's loss.
/// - hidden_by_work: the computation is a fixed amount of work; the share of the collective's time
///   by which the whole is shorter than one after the other. Within one machine it is close to zero
///   for everybody, because the computing processors move the bytes: only waiting can hide.
/// With `thread` in its name, the library's thread moves data and `progress` is not called.
/// `mpi` is MPI's own non-blocking collective with MPI_Test in the place of `progress`.
///
/// usage: mpirun -np N mpi_overlap_bench [--bytes BYTES] [--rounds N]
#include "job.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <string>

namespace {

using zero::Op;

/// Arithmetic that no compiler removes and no memory slows: a few microseconds a piece.
class Computation {
 public:
  void piece() {
    float x = value_;
    for (int i = 0; i < 2000; ++i) x = x * 0.999f + 0.001f;
    value_ = x;
  }
  [[nodiscard]] float value() const { return value_; }

 private:
  float value_ = 0.5f;
};

struct Best {
  double alone = std::numeric_limits<double>::infinity();
  double waiting = std::numeric_limits<double>::infinity();
  double worked = 0;  ///< hidden by the work

  void print(bench::Job const& job, std::string const& name) const {
    job.print(name,
              {{"alone_ms", alone * 1e3},
               {"hidden_by_clock", 1. - waiting / alone},
               {"hidden_by_work", worked}});
  }
};

/// `start()`, `poll()` and `wait()` of one way to run one collective.
template <class Start, class Poll, class Wait>
Best measure(bench::Job const& job, int rounds, Start start, Poll poll, Wait wait) {
  Computation computation;
  Best best;
  for (int round = -1; round < rounds; ++round) {
    double const alone = job.timed([&] {
      start();
      wait();
    });
    double waited = 0;
    static_cast<void>(job.timed([&] {
      start();
      double const end = bench::seconds_now() + alone;
      while (bench::seconds_now() < end) {
        computation.piece();
        poll();
      }
      double const ended = bench::seconds_now();
      wait();
      waited = bench::seconds_now() - ended;
    }));
    waited = job.slowest(waited);
    // As many pieces as take as long as the collective, on an undisturbed processor.
    int pieces = 0;
    double const begin = bench::seconds_now();
    for (; bench::seconds_now() < begin + alone; ++pieces) computation.piece();
    double const compute = job.timed([&] {
      for (int i = 0; i < pieces; ++i) computation.piece();
    });
    double const both = job.timed([&] {
      start();
      for (int i = 0; i < pieces; ++i) {
        computation.piece();
        poll();
      }
      wait();
    });
    if (round < 0) continue;
    best.alone = std::min(best.alone, alone);
    best.waiting = std::min(best.waiting, waited);
    best.worked = std::max(best.worked, (alone + compute - both) / std::min(alone, compute));
  }
  if (computation.value() < 0) std::abort();
  return best;
}

void measure_zero(bench::Job const& job,
                  std::string const& name,
                  zero::mpi::Options options,
                  std::size_t bytes,
                  int rounds) {
  options.shared_bytes = 2 * bytes + zero::MiB;
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  for (Op const op : {Op::reduce_scatter, Op::all_gather}) {
    bool const reduces = op == Op::reduce_scatter;
    auto const n = static_cast<std::size_t>(job.size);
    std::size_t const block = bytes / sizeof(float) / n;
    bench::Floats const send(comm.allocator(), reduces ? n * block : block);
    bench::Floats const recv(comm.allocator(), reduces ? block : n * block);
    zero::Mpi<>::Ticket ticket;
    measure(
        job,
        rounds,
        [&] {
          ticket = comm.start({.op = op, .count = block, .send = send.data(), .recv = recv.data()});
        },
        [&] {
          if (options.progress_thread == zero::mpi::ProgressThread::off) comm.progress();
        },
        [&] { comm.wait(ticket); })
        .print(job, "mpi_overlap/" + std::string(zero::name(op)) + "/" + name);
  }
  comm.close();
}

void measure_library(bench::Job const& job, std::size_t bytes, int rounds) {
  for (Op const op : {Op::reduce_scatter, Op::all_gather}) {
    bool const reduces = op == Op::reduce_scatter;
    auto const n = static_cast<std::size_t>(job.size);
    std::size_t const block = bytes / sizeof(float) / n;
    auto const count = static_cast<int>(block);
    bench::Floats const send(zero::HostAllocator(), reduces ? n * block : block);
    bench::Floats const recv(zero::HostAllocator(), reduces ? block : n * block);
    MPI_Request request = MPI_REQUEST_NULL;
    measure(
        job,
        rounds,
        [&] {
          if (reduces) {
            MPI_Ireduce_scatter_block(
                send.data(), recv.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &request);
          } else {
            MPI_Iallgather(send.data(),
                           count,
                           MPI_FLOAT,
                           recv.data(),
                           count,
                           MPI_FLOAT,
                           MPI_COMM_WORLD,
                           &request);
          }
        },
        [&] {
          int done = 0;
          MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        },
        [&] { MPI_Wait(&request, MPI_STATUS_IGNORE); })
        .print(job, "mpi_overlap/" + std::string(zero::name(op)) + "/mpi");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_job(argc, argv, [&](bench::Job const& job) {
    auto const bytes =
        static_cast<std::size_t>(bench::argument(argc, argv, "--bytes", 64 * zero::MiB));
    auto const rounds = static_cast<int>(bench::argument(argc, argv, "--rounds", 8));
    measure_zero(job, "window", {}, bytes, rounds);
    measure_zero(job, "nodes", {.node = job.rank}, bytes, rounds);
    measure_zero(job,
                 "window_thread",
                 {.progress_thread = zero::mpi::ProgressThread::multiple},
                 bytes,
                 rounds);
    measure_zero(job,
                 "nodes_thread",
                 {.node = job.rank, .progress_thread = zero::mpi::ProgressThread::multiple},
                 bytes,
                 rounds);
    measure_library(job, bytes, rounds);
  });
}
