/// @file
/// Groups of ranks on GPUs that NCCL connects, through the library and without it.
#pragma once

#include "devices.cuh"
#include "zero/comm/nccl.hpp"

#include <nccl.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

namespace bench {

/// What NCCL is told about memory of the library's.
[[nodiscard]] inline zero::nccl::Options registered(zero::nccl::Registration registration) {
  zero::nccl::Options options;
  options.registration = registration;
  return options;
}

/// Prints what the figures below depend on, besides the machine.
template <class Comm>
void print_setting(Comm const& comm) {
  auto const report = comm.report();
  auto const registration = name(report.registration);
  char const* const ctas = std::getenv("NCCL_MAX_CTAS");
  std::fprintf(stderr,
               "NCCL %d, %.*s sums, registration: %.*s, NCCL_MAX_CTAS %s\n",
               report.library_version,
               static_cast<int>(report.reduction.size()),
               report.reduction.data(),
               static_cast<int>(registration.size()),
               registration.data(),
               ctas != nullptr ? ctas : "not set");
}

/// Calls `body(comm, meeting)` on every rank of a group with one rank on each device.
template <class R, class Body>
void nccl_ranks(int ranks, zero::nccl::Options const& options, Body const& body) {
  auto const id = zero::Nccl<R>::unique_id();
  Meeting meeting(ranks);
  on_devices(ranks, ranks, [&](int rank, cudaStream_t stream) {
    zero::Nccl<R> comm(zero::nccl::NewGroup<zero::nccl::Library>{id, rank, ranks, stream}, options);
    if (rank == 0) print_setting(comm);
    body(comm, meeting);
    comm.close();
  });
}

/// Why memory cannot be a symmetric window here, which depends on NCCL, driver, environment and
/// topology; empty if it can.
[[nodiscard]] inline std::string no_windows(int ranks) {
  auto const id = zero::Nccl<>::unique_id();
  auto options = registered(zero::nccl::Registration::windows);
  options.deadline_s = 60;
  std::mutex mutex;
  std::string why;
  on_devices(ranks, ranks, [&](int rank, cudaStream_t stream) {
    try {
      zero::Nccl<> comm(zero::nccl::NewGroup<zero::nccl::Library>{id, rank, ranks, stream},
                        options);
      auto allocator = comm.allocator();
      allocator.deallocate(allocator.allocate(4096, 4096), 4096, 4096);
      comm.close();
    } catch (zero::Error const& error) {
      std::string const& said = error.message();
      // Anything else is a failure, and not this machine's nature.
      bool const refused = said.find("made none") != std::string::npos ||
                           said.find("windows need NCCL") != std::string::npos;
      if (!refused) throw;
      std::lock_guard const lock(mutex);
      why = said;
    }
  });
  return why;
}

/// NCCL as a program without the library calls it: a communicator that blocks, on a stream of the
/// caller's. A baseline of zero::bench::collectives.
class RawNccl {
 public:
  static constexpr std::string_view name = "NCCL";

  /// Collective, on the current device.
  RawNccl(ncclUniqueId const& id, int rank, int ranks, cudaStream_t stream)
      : ranks_(ranks), stream_(stream) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    require(ncclCommInitRankConfig(&comm_, ranks, id, rank, &config));
  }
  RawNccl(RawNccl const&) = delete;
  RawNccl& operator=(RawNccl const&) = delete;

  /// Collective; waits for the stream. A program that fails before it ends as it is.
  void close() {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    require(ncclCommFinalize(comm_));
    require(ncclCommDestroy(comm_));
  }

  template <class C>
  void operator()(C& /*comm*/, zero::Collective const& op) {
    run(op);
  }
  void run(zero::Collective const& op) {
    ncclDataType_t const type = zero::detail::nccl_type(op.dtype);
    switch (op.op) {
      case zero::Op::reduce_scatter:
        return require(
            ncclReduceScatter(op.send, op.recv, op.count, type, ncclSum, comm_, stream_));
      case zero::Op::all_gather:
        return require(ncclAllGather(op.send, op.recv, op.count, type, comm_, stream_));
      case zero::Op::all_reduce:
        return require(ncclAllReduce(op.send, op.recv, op.count, type, ncclSum, comm_, stream_));
      case zero::Op::broadcast:
        return require(ncclBroadcast(op.send, op.recv, op.count, type, op.root, comm_, stream_));
      case zero::Op::all_to_all: return exchange(op, type);
    }
  }

 private:
  void exchange(zero::Collective const& op, ncclDataType_t type) {
    require(ncclGroupStart());
    for (int peer = 0; peer < ranks_; ++peer) {
      std::size_t const at = static_cast<std::size_t>(peer) * op.block_bytes();
      auto const* const from = static_cast<std::byte const*>(op.send) + at;
      require(ncclSend(from, op.count, type, peer, comm_, stream_));
      require(
          ncclRecv(static_cast<std::byte*>(op.recv) + at, op.count, type, peer, comm_, stream_));
    }
    require(ncclGroupEnd());
  }
  void require(ncclResult_t result) const {
    if (result == ncclSuccess) return;
    zero::fail(zero::ErrorKind::communication,
               {"NCCL: ", ncclGetErrorString(result), " ", ncclGetLastError(comm_)});
  }

  int ranks_;
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace bench
