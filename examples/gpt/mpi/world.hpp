/// @file
/// What a rank is under mpirun.
#pragma once

#include "rank_memory.hpp"
#include "zero/comm/mpi.hpp"
#include "zero/zero.hpp"

namespace gpt {

/// Sums in rank order: the losses of threads, bit for bit.
using MpiWorld = zero::Mpi<zero::mpi::Ordered>;

/// Memory that ranks of the same node read directly.
using MpiMemory = zero::Owned<RankMemory<zero::mpi::SharedAllocator>>;

}  // namespace gpt
