/// Processes through zero/c_mpi.h: the bits of threads, under every stage that this program has.
#include "c_api/trainer.h"
#include "zero/c_mpi.h"

static int32_t run(int* argc, char*** argv, char* message, int64_t size) {
  zero_comm* comm = NULL;
  // Before MPI runs.
  REQUIRE(zero_mpi(MPI_COMM_WORLD, NULL, &comm, message, size) == ZERO_INVALID_ARGUMENT);
  REQUIRE(strstr(message, "MPI is not running") != NULL);
  int provided = 0;
  MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided);
  REQUIRE(every_function(0) != NULL);
  REQUIRE(zero_mpi(MPI_COMM_NULL, NULL, &comm, message, size) == ZERO_INVALID_ARGUMENT);
  zero_mpi_options options = zero_mpi_options_of();
  options.deadline_s = 60;
  for (options.window = 0; options.window < 2; ++options.window) {
    if (options.window) {
      MPI_Fint const world = MPI_Comm_c2f(MPI_COMM_WORLD);
      REQUIRE(zero_mpi_f(world, &options, &comm, message, size) == ZERO_OK);
    } else {
      REQUIRE(zero_mpi(MPI_COMM_WORLD, &options, &comm, message, size) == ZERO_OK);
    }
    int const ranks = zero_comm_size(comm);
    int const rank = zero_comm_rank(comm);
    int world_size = 0, world_rank = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    REQUIRE(ranks == world_size && rank == world_rank);
    double sum = rank + 1;
    REQUIRE(zero_comm_sum(comm, &sum) == ZERO_OK);
    REQUIRE(sum == ranks * (ranks + 1) / 2);
    zero_comm_progress(comm);
    for (int mode = trainer_unit_by_unit; mode <= trainer_separate; ++mode) {
      if (mode == trainer_micro_steps) continue;
      for (int stage = ZERO_POS; stage <= (mode == trainer_unit_by_unit ? ZERO_POS_G_P : ZERO_POS);
           stage += 2) {
        unsigned char threads[trainer_elements * 4] = "", processes[trainer_elements * 4] = "";
        trainer_run run = {stage, ZERO_FP32, ZERO_ADAMW, mode, 3, processes};
        REQUIRE(trainer_c(comm, &run) == ZERO_OK);
        if (rank != 0) continue;
        run.result = threads;
        REQUIRE(zero_run_ranks(ranks, trainer_c, &run, message, size) == ZERO_OK);
        REQUIRE(memcmp(threads, processes, sizeof(threads)) == 0);
        REQUIRE(threads[0] != 0 || threads[3] != 0);
      }
    }
    // Left to the communicator, whose window it is in.
    zero_tensor const one[1] = {ZERO_TENSOR("left", 0, 1000)};
    zero_options const choice = zero_options_of(ZERO_POS, ZERO_FP32, ZERO_ADAMW);
    zero_optimizer* left = NULL;
    REQUIRE(zero_create(comm, &choice, one, 1, &left) == ZERO_OK);
    REQUIRE(zero_comm_close(comm, message, size) == ZERO_OK);
    comm = NULL;
  }
  return ZERO_OK;
}

int main(int argc, char** argv) {
  char message[500] = "";
  if (run(&argc, &argv, message, sizeof(message)) != ZERO_OK) {
    fprintf(stderr, "%s\n", message);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
  return 0;
}
