#include "zero/comm/mpi.hpp"

#include "backends.hpp"

static_assert(backends::mpi.abilities ==
              backends::observed<zero::Mpi<zero::mpi::Ordered>, zero::mpi::Options>());
