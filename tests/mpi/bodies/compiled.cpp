// A unit that takes what is behind a communicator from zero::compiled_mpi.
#include "facts.hpp"

#include <cstdio>

#if !ZERO_TAKES_COMPILED_MPI
#error "zero::compiled_mpi has other flags"
#endif

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  Facts const all = facts(MPI_COMM_WORLD);
  bool const sound = all.planned && all.refused && all.sum == 3.;
  std::puts(sound ? "all is there" : "something is wrong with the library");
  MPI_Finalize();
  return sound ? 0 : 1;
}
