// Whole steps of threads that share a GPU: 67 million parameters in bf16 with AdamW.
#include "steps.cuh"

int main() {
  if (bench::devices_or_excuse() == 0) return 77;
  for (int const ranks : {1, 4}) {
    bench::in_process_ranks(ranks, [](zero::InProcessCuda& comm, bench::Meeting& meeting) {
      bench::all_steps("InProcessCuda", comm, meeting);
    });
  }
  return 0;
}
