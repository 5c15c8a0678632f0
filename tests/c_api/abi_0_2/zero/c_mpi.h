/// @file
/// Processes as ranks, for zero/c.h. Defined by zero/c/mpi.hpp, beside zero/c/define.hpp.
#pragma once

#include "zero/c.h"

#include <mpi.h>

#ifdef __cplusplus
extern "C" {
#endif

/// Settings of a group of processes; the same on all ranks.
typedef struct zero_mpi_options {
  int64_t size;             ///< of this struct
  double deadline_s;        ///< seconds after which a silent rank is given up on; 0: 600
  int64_t shared_bytes;     ///< of each rank in the node's window; 0: 64 MiB
  int32_t window;           ///< 1: optimizers allocate in the window, which peers read in one pass
  int32_t progress_thread;  ///< 1: a thread advances transfers; takes MPI_THREAD_MULTIPLE
} zero_mpi_options;

/// Settings by default.
static inline zero_mpi_options zero_mpi_options_of(void) {
  zero_mpi_options const options = {sizeof(zero_mpi_options), 0, 0, 0, 0};
  return options;
}

/// The ranks of an MPI communicator, in its order, until `zero_comm_close`; `world` is duplicated.
/// Sums are added in rank order: the bits of `zero_run_ranks`. Options may be null. Collective.
int32_t zero_mpi(
    MPI_Comm world, zero_mpi_options const* options, zero_comm** comm, char* message, int64_t size);
/// The same for the handle that Fortran has.
int32_t zero_mpi_f(
    MPI_Fint world, zero_mpi_options const* options, zero_comm** comm, char* message, int64_t size);

#ifdef __cplusplus
}  // extern "C"
#endif
