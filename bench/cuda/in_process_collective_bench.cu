// Collectives between threads that share a GPU: how close are they to the speed of its memory?
#include "collectives.cuh"

int main() {
  if (bench::devices_or_excuse() == 0) return 77;
  for (int const ranks : {1, 2, 4}) {
    bench::in_process_ranks(ranks, [](zero::InProcessCuda& comm, bench::Meeting& meeting) {
      bench::collectives("InProcessCuda", comm, meeting);
    });
  }
  return 0;
}
