// Collectives between the GPUs there are, through NCCL: what do ordered sums cost beside its own?
#include "../command.hpp"
#include "nccl_ranks.cuh"
#include "zero/bench.hpp"
#include "zero/device/allocators.hpp"

#include <string_view>

namespace {

using Native = zero::Nccl<zero::nccl::Native>;

struct OwnSums {
  static constexpr std::string_view name = "NCCL with its own sums";
  template <class C>
  void operator()(C&, zero::Collective const& op) {
    zero::run(comm, op);
  }
  Native& comm;
};

}  // namespace

int main(int argc, char** argv) {
  bench::Command const command = bench::read_command(argc, argv);
  if (command.status) return *command.status;
  int const devices = bench::devices_or_excuse();
  if (devices == 0) return 77;
  auto const launch = [devices](int ranks, auto body) {
    if (ranks > devices) {
      zero::fail(zero::ErrorKind::invalid_argument,
                 {"--ranks ", ranks, " needs as many GPUs; there are ", devices});
    }
    auto const id = Native::unique_id();
    bench::nccl_ranks<zero::nccl::Ordered>(ranks, [&](auto& comm, bench::Meeting&) {
      auto const stream = comm.space().stream();
      Native native(zero::nccl::NewGroup<zero::nccl::Library>{id, comm.rank(), ranks, stream}, {});
      OwnSums raw{native};
      body(comm, raw, zero::device::MallocAllocator(comm.space().device()));
      native.close();
    });
  };
  return zero::bench::collectives(argc, argv, launch, command.cases);
}
