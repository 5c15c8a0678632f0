// What zero::compiled_mpi contains: all that a communicator over MPI does. The rest is taken from
// zero::compiled. Its flags are those of the whole build.
#define ZERO_MPI_IMPLEMENTATION
#include <zero/comm/mpi.hpp>

#if !ZERO_TAKES_COMPILED_MPI
#error "zero: cmake/compiled.cmake asked the compiler for the name of other flags than these"
#endif
