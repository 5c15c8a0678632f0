// The one unit of the program that compiles the communicator's bodies for others.
#define ZERO_IMPLEMENTATION
#include "facts.hpp"

Facts here(MPI_Comm world);

Facts here(MPI_Comm world) { return facts(world); }
