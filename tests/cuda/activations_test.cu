// Transfers between a device and pinned memory, and activation checkpoints on devices.
#include "conformance/transfer.hpp"
#include "cuda/placements.cuh"
#include "cuda/streams.hpp"
#include "zero/transfer/cuda.hpp"

#include <doctest/doctest.h>

namespace activations_test {
namespace {

struct CudaWorld {
  template <class Body>
  static void run(Body const& body) {
    Streams const streams(1);
    zero::CudaTransfer transfer(streams.spaces[0]);
    placements::DeviceMemory fast(streams.spaces[0]);
    body(transfer, fast);
  }
};

TEST_CASE("CudaTransfer: out and back") { conformance::check_round_trips<CudaWorld>(); }
TEST_CASE("CudaTransfer: in the order of their start") { conformance::check_order<CudaWorld>(); }
TEST_CASE("CudaTransfer: after the work before them") { conformance::check_queue<CudaWorld>(); }
TEST_CASE("activations of devices, whole, as shares, and in pinned memory") {
  for (int const ranks : {1, 2, 3}) placements::check(ranks, [] { return 0u; });
}

}  // namespace
}  // namespace activations_test
