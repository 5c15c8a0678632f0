// The kernel that the programs here need, which a host compiler compiles.
#include "zero/comm/nccl.hpp"

template struct zero::nccl::Kernels<>;
