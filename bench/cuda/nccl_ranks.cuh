/// @file
/// Groups of ranks on GPUs that NCCL connects.
#pragma once

#include "devices.cuh"
#include "zero/comm/nccl.hpp"

#include <cstdio>
#include <cstdlib>

namespace bench {

/// Prints what the figures below depend on, besides the machine.
template <class Comm>
void print_setting(Comm const& comm) {
  auto const report = comm.report();
  char const* const ctas = std::getenv("NCCL_MAX_CTAS");
  std::fprintf(stderr,
               "NCCL %d, %.*s sums, NCCL_MAX_CTAS %s\n",
               report.library_version,
               static_cast<int>(report.reduction.size()),
               report.reduction.data(),
               ctas != nullptr ? ctas : "not set");
}

/// Calls `body(comm, meeting)` on every rank of a group with one rank on each device.
template <class R, class Body>
void nccl_ranks(int ranks, Body const& body) {
  auto const id = zero::Nccl<R>::unique_id();
  Meeting meeting(ranks);
  on_devices(ranks, ranks, [&](int rank, cudaStream_t stream) {
    zero::Nccl<R> comm(zero::nccl::NewGroup<zero::nccl::Library>{id, rank, ranks, stream}, {});
    if (rank == 0) print_setting(comm);
    body(comm, meeting);
    comm.close();
  });
}

}  // namespace bench
