// Whole steps of threads that share a GPU: 67 million parameters in bf16 with AdamW.
#include "steps.cuh"
#include "zero/device/allocators.hpp"

int main(int argc, char** argv) {
  std::size_t const size = bench::unit_elements(argc, argv);
  if (bench::devices_or_excuse() == 0) return 77;
  for (int const ranks : {1, 4}) {
    bench::in_process_ranks(ranks, [&](zero::InProcessCuda& comm, bench::Meeting& meeting) {
      zero::device::MallocAllocator const allocator(comm.space().device());
      bench::all_steps("InProcessCuda", comm, meeting, size, allocator);
    });
  }
  return 0;
}
