// Collectives between threads that share a GPU: how close are they to a copy in its memory?
#include "devices.cuh"
#include "zero/bench.hpp"
#include "zero/device/allocators.hpp"

int main(int argc, char** argv) {
  if (bench::devices_or_excuse() == 0) return 77;
  return zero::bench::collectives(argc, argv, [](int ranks, auto body) {
    bench::in_process_ranks(ranks, [&](zero::InProcessCuda& comm, bench::Meeting&) {
      body(comm, zero::bench::copy_of_buffer, zero::device::MallocAllocator(comm.space().device()));
    });
  });
}
