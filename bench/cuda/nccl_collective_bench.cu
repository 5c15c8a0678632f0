// Collectives between the GPUs there are, through NCCL: what does the library cost beside NCCL
// itself, what do sums in rank order, and what do registered windows gain over plain memory?
#include "../command.hpp"
#include "nccl_ranks.cuh"
#include "zero/bench.hpp"

namespace {

using zero::nccl::Registration;

/// Ranks of the library with NCCL itself as their baseline. Buffers are from the library's
/// communicator and registered with that alone, so that they are plain memory to the baseline.
template <class R, class Body>
void beside_nccl(int ranks, zero::nccl::Options const& options, Body const& body) {
  auto const id = zero::Nccl<R>::unique_id();
  bench::nccl_ranks<R>(ranks, options, [&](auto& comm, bench::Meeting&) {
    bench::RawNccl raw(id, comm.rank(), ranks, comm.space().stream());
    body(comm, raw);
    raw.close();
  });
}

}  // namespace

int main(int argc, char** argv) {
  bench::Command const command = bench::read_command(argc, argv, -1, true);
  if (command.status) return *command.status;
  int const devices = bench::devices_or_excuse();
  if (devices == 0) return 77;
  for (int const ranks : command.cases.ranks) {
    if (ranks > devices) {
      std::fprintf(
          stderr, "%s: --ranks %d needs as many GPUs; there are %d\n", argv[0], ranks, devices);
      return 2;
    }
    std::string const why = command.windows ? bench::no_windows(ranks) : "";
    if (!why.empty()) {
      std::printf("skipped: %s\n", why.c_str());
      return 77;
    }
  }
  auto const options =
      bench::registered(command.windows ? Registration::windows : Registration::none);
  auto const launch = [&](int ranks, auto body) {
    if (command.native) {
      beside_nccl<zero::nccl::Native>(ranks, options, body);
    } else {
      beside_nccl<zero::nccl::Ordered>(ranks, options, body);
    }
  };
  return zero::bench::collectives(argc, argv, launch, command.cases);
}
