/// @file
/// Where the bodies of the communicator over MPI are compiled.
#pragma once

#include "zero/base/config.hpp"

/// Whether zero::compiled_mpi was built with this translation unit's flags, whose name it defines
/// as 1.
#if ZERO_IF(ZERO_JOIN(ZERO_COMPILED_MPI_, ZERO_NAMESPACE, , , , , , ), 1, 0)
#define ZERO_TAKES_COMPILED_MPI 1
#else
#define ZERO_TAKES_COMPILED_MPI 0
#endif

/// @def ZERO_MPI_BODIES
/// As `ZERO_BODIES`, of what depends on MPI. `ZERO_MPI_IMPLEMENTATION` compiles that alone.
/// @def ZERO_MPI_APART
/// Before a declaration whose body stands apart.
/// @def ZERO_MPI_BODY
/// Before such a body.
#if defined(ZERO_IMPLEMENTATION) || defined(ZERO_MPI_IMPLEMENTATION)
#define ZERO_MPI_BODIES 1
#define ZERO_MPI_APART
#define ZERO_MPI_BODY
#elif defined(ZERO_DECLARATIONS) || ZERO_TAKES_COMPILED_MPI
#define ZERO_MPI_BODIES 0
#define ZERO_MPI_APART
#define ZERO_MPI_BODY
#else
#define ZERO_MPI_BODIES 1
#define ZERO_MPI_APART template <class = void>
#define ZERO_MPI_BODY template <class>
#endif
