// expect: zero: mpi::Native is no part of the library since 0.3; take zero::Mpi<>, or
#include <zero/comm/mpi.hpp>

#ifndef ZERO_CONTROL
using Comm = zero::Mpi<zero::mpi::Native>;
#else
using Comm = zero::Mpi<zero::mpi::Ordered>;
#endif

int main() { Comm comm(MPI_COMM_WORLD); }
