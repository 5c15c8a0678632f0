/// @file
/// Groups of ranks on GPUs that NCCL connects.
#pragma once

#include "devices.cuh"
#include "zero/comm/nccl.hpp"

namespace bench {

/// Calls `body(comm, meeting)` on every rank of a group with one rank on each device.
template <class R, class Body>
void nccl_ranks(int ranks, Body const& body) {
  auto const id = zero::Nccl<R>::unique_id();
  Meeting meeting(ranks);
  on_devices(ranks, ranks, [&](int rank, cudaStream_t stream) {
    zero::Nccl<R> comm(zero::nccl::NewGroup<zero::nccl::Library>{id, rank, ranks, stream}, {});
    body(comm, meeting);
    comm.close();
  });
}

}  // namespace bench
