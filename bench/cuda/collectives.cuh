/// @file
/// Collectives in nccl-tests' conventions: S is the larger buffer of one rank, algbw = S / t, and
/// busbw = algbw times (N - 1) / N, or 2 (N - 1) / N for an all-reduce. t is the longest of all
/// ranks', on the device's clock. Beside it is a device-to-device copy of S bytes in the same run.
#pragma once

#include "devices.cuh"
#include "zero/base/bytes.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/device/allocators.hpp"

#include <cstddef>
#include <cstdio>
#include <string>

namespace bench {

/// Seconds of one call of `work`, enqueued again and again: the longest of all ranks'.
template <class Work>
double repeated(
    int rank, Meeting& meeting, StreamClock& clock, std::size_t bytes, Work const& work) {
  int const repeat = bytes <= zero::MiB ? 50 : 10;
  for (int i = 0; i < 5; ++i) work();
  clock.start();
  clock.stop();
  static_cast<void>(clock.seconds());
  meeting.meet();
  clock.start();
  for (int i = 0; i < repeat; ++i) work();
  clock.stop();
  return meeting.longest(rank, clock.seconds()) / repeat;
}

/// What the benchmarks of collectives are told.
inline std::size_t largest_buffer(int argc, char** argv) {
  return size_option(argc, argv, "bytes of the largest buffer", 256 * zero::MiB);
}

/// Prints a table for buffers of up to `largest` bytes on rank 0. Collective.
template <zero::Communicator C>
void collectives(char const* backend, C& comm, Meeting& meeting, std::size_t largest) {
  using zero::Op;
  auto const space = comm.space();
  auto const ranks = static_cast<std::size_t>(comm.size());
  int const rank = comm.rank();
  zero::device::MallocAllocator memory(space.device());
  auto const take = [&] {
    void* const block = memory.allocate(largest, 4096);
    if (block == nullptr) check(cudaErrorMemoryAllocation, "cudaMalloc");
    space.zero(block, largest);
    return block;
  };
  void* const send = take();
  void* const recv = take();
  StreamClock clock(space.stream());
  if (rank == 0) {
    std::printf("\n%s, %zu ranks, fp32\n", backend, ranks);
    std::printf(
        "%12s %-15s %10s %9s %9s %12s\n", "bytes", "", "us", "algbw", "busbw", "time / copy");
  }
  for (std::size_t bytes = zero::KiB; bytes <= largest; bytes *= 2) {
    std::size_t const whole = bytes / sizeof(float);
    double const copy =
        repeated(rank, meeting, clock, bytes, [&] { space.copy(recv, send, bytes); });
    for (Op const op : {Op::reduce_scatter, Op::all_gather, Op::all_reduce}) {
      std::size_t const count = op == Op::all_reduce ? whole : whole / ranks;
      double const seconds = repeated(rank, meeting, clock, bytes, [&] {
        zero::run(comm, {.op = op, .count = count, .send = send, .recv = recv, .bucket = 0});
      });
      double const rate = 1e-9 * static_cast<double>(bytes) / seconds;
      double const peers = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
      if (rank != 0) continue;
      std::printf("%12zu %-15s %10.1f %9.2f %9.2f %12.2f\n",
                  bytes,
                  std::string(zero::name(op)).c_str(),
                  1e6 * seconds,
                  rate,
                  rate * peers * (op == Op::all_reduce ? 2 : 1),
                  seconds / copy);
    }
  }
  // Everybody is done with everybody's memory.
  meeting.meet();
  memory.deallocate(send, largest, 4096);
  memory.deallocate(recv, largest, 4096);
}

}  // namespace bench
