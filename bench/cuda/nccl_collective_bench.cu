// Collectives between the GPUs there are, through NCCL: what do ordered sums cost beside its own?
#include "collectives.cuh"
#include "nccl_ranks.cuh"

int main(int argc, char** argv) {
  std::size_t const size = bench::largest_buffer(argc, argv);
  int const ranks = bench::devices_or_excuse();
  if (ranks == 0) return 77;
  bench::nccl_ranks<zero::nccl::Ordered>(ranks, [&](auto& comm, bench::Meeting& meeting) {
    bench::collectives("NCCL, ordered", comm, meeting, size);
  });
  bench::nccl_ranks<zero::nccl::Native>(ranks, [&](auto& comm, bench::Meeting& meeting) {
    bench::collectives("NCCL, native", comm, meeting, size);
  });
  return 0;
}
