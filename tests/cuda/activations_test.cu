// Transfers between a device and pinned memory, and activation checkpoints on devices.
#include "conformance/transfer.hpp"
#include "cuda/placements.cuh"
#include "cuda/streams.hpp"
#include "support/test.hpp"
#include "zero/transfer/cuda_transfer.hpp"

namespace activations_test {
namespace {

TEST_CASE("CudaTransfer: out and back, in the order of starts, after the work before it") {
  Streams const streams(1);
  zero::CudaTransfer transfer(streams.spaces[0]);
  placements::DeviceMemory fast(streams.spaces[0]);
  conformance::check_transfer(transfer, fast);
}
TEST_CASE("activations of devices, whole, as shares, and in pinned memory") {
  for (int const ranks : {1, 2, 3}) placements::check(ranks, [] { return 0u; });
}

}  // namespace
}  // namespace activations_test
