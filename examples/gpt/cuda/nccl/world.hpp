/// @file
/// What a rank is that has a GPU of its own.
#pragma once

#include "../world.hpp"
#include "zero/comm/nccl.hpp"

namespace gpt {

/// Sums in rank order: the losses of threads on one GPU, bit for bit.
using NcclWorld = zero::Nccl<>;
using NcclMemory = zero::Owned<RankMemory<NcclWorld::Allocator>>;

}  // namespace gpt
