#include <zero/comm/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
#ifndef HEADERS_ALONE
  zero::Mpi<>(MPI_COMM_WORLD).close();
#endif
  MPI_Finalize();
}
