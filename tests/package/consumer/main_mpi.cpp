#include <zero/comm/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  zero::Mpi<>(MPI_COMM_WORLD).close();
  MPI_Finalize();
}
