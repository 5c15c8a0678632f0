// Threads as ranks over the GPUs there are: accumulation, rules and lent memory.
#include "cuda/streams.hpp"
#include "differential/check_cases.hpp"
#include "zero/comm/in_process_cuda.hpp"
#include "zero/comm/run_ranks.hpp"
#include "zero/device/allocators.hpp"

namespace policies_test {
namespace {

using zero::InProcessCuda;
using zero::device::MallocAllocator;

struct World {
  template <class Body>
  static void run(int ranks, Body const& body) {
    Streams const streams(ranks);
    zero::run_ranks(InProcessCuda::group(streams.spaces), [&](InProcessCuda& comm) {
      body(comm, MallocAllocator(comm.space().device()));
    });
  }
};

TEST_CASE("InProcessCuda trains to the host's bits with every accumulation, rule and memory") {
  differential::check_policies<World>(2, 8);
}

}  // namespace
}  // namespace policies_test
