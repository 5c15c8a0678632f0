#include <zero/comm/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  // Of an installed package the whole program is compiled; of the others, what shows their paths
  // and flags.
#ifndef HEADERS_ALONE
  zero::Mpi<>(MPI_COMM_WORLD).close();
#endif
  MPI_Finalize();
}
