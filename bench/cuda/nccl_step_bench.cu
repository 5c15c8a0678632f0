// Whole steps on the GPUs there are, through NCCL: 67 million parameters in bf16 with AdamW.
#include "nccl_ranks.cuh"
#include "steps.cuh"

int main(int argc, char** argv) {
  std::size_t const size = bench::unit_elements(argc, argv);
  int const ranks = bench::devices_or_excuse();
  if (ranks == 0) return 77;
  bench::nccl_ranks<zero::nccl::Ordered>(ranks, [&](auto& comm, bench::Meeting& meeting) {
    bench::all_steps("NCCL, ordered", comm, meeting, size);
  });
  bench::nccl_ranks<zero::nccl::Native>(ranks, [&](auto& comm, bench::Meeting& meeting) {
    bench::all_steps("NCCL, native", comm, meeting, size);
  });
  return 0;
}
