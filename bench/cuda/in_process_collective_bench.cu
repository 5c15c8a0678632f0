// Collectives between threads that share a GPU: how close are they to the speed of its memory?
#include "collectives.cuh"

int main(int argc, char** argv) {
  std::size_t const size = bench::largest_buffer(argc, argv);
  if (bench::devices_or_excuse() == 0) return 77;
  for (int const ranks : {1, 2, 4}) {
    bench::in_process_ranks(ranks, [&](zero::InProcessCuda& comm, bench::Meeting& meeting) {
      bench::collectives("InProcessCuda", comm, meeting, size);
    });
  }
  return 0;
}
