// Collectives between threads that share a GPU: how close are they to a copy in its memory?
#include "../command.hpp"
#include "devices.cuh"
#include "zero/bench.hpp"
#include "zero/device/allocators.hpp"

int main(int argc, char** argv) {
  bench::Command const command = bench::read_command(argc, argv);
  if (command.status) return *command.status;
  if (bench::devices_or_excuse() == 0) return 77;
  auto const launch = [](int ranks, auto body) {
    bench::in_process_ranks(ranks, [&](zero::InProcessCuda& comm, bench::Meeting&) {
      body(comm, zero::bench::copy_of_buffer, zero::device::MallocAllocator(comm.space().device()));
    });
  };
  return zero::bench::collectives(argc, argv, launch, command.cases);
}
