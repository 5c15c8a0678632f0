#include "../../mpi/job.hpp"
#include "run_rank.hpp"

namespace {

/// MPI only starts the processes, and tells them the id of each group over NCCL.
int train(gpt::Options const& options, gpt::Text const& text) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm node = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  int device = 0;
  MPI_Comm_rank(node, &device);
  MPI_Comm_free(&node);
  auto const run = [&](auto const&... arguments) {
    gpt::NcclWorld::UniqueId id{};
    if (rank == 0) id = gpt::NcclWorld::unique_id();
    MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
    return gpt::run_nccl_rank(id, rank, device, arguments...);
  };
  return gpt::train(options, text, run, rank == 0);
}

}  // namespace

int main(int argc, char** argv) {
  gpt::Options options;
  CLI::App app{
      "Trains a byte-level GPT in the memory of GPUs, one for each process of mpirun, over NCCL.\n"
      "--json writes what train_gpt --json writes."};
  app.option_defaults()->always_capture_default();
  return gpt::run_job("train_gpt_cuda_mpi", app, argc, argv, options, [&](gpt::Text const& text) {
    return train(options, text);
  });
}
