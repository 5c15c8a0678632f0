// expect: NativeCollectives: MPI adds fp32 and fp64, each in its own type; take zero::Mpi<>
#include "../../../examples/mpi/native_collectives.hpp"

#ifndef ZERO_CONTROL
using Precision = zero::Mixed<zero::bf16>;
#else
using Precision = zero::Fp64;
#endif

int main() { NativeCollectives<Precision> comm(MPI_COMM_WORLD); }
