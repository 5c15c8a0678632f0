// What the streams of communicators come before: all others.
#include "cuda/streams.hpp"
#include "emulated/runtime.hpp"
#include "support/test.hpp"
#include "zero/comm/nccl.hpp"

namespace priority_test {
namespace {

/// Streams of the highest and of no priority, on both devices.
std::array<std::size_t, 2> streams() {
  std::array<std::size_t, 2> result{};
  for (int device = 0; device < emulated::devices; ++device) {
    result[0] += emulated::streams_of(device, emulated::highest_priority);
    result[1] += emulated::streams_of(device, 0);
  }
  return result;
}

TEST_CASE("emulated: the streams of a group of threads have the highest priority") {
  Streams const trainers(3);
  auto const before = streams();
  {
    auto const group = zero::InProcessCuda::group(trainers.spaces);
    // One on each device.
    CHECK(streams() == std::array{before[0] + 2, before[1]});
  }
  CHECK(streams() == before);
}

TEST_CASE("emulated: and so do those of NCCL, but none of a trainer's own") {
  Streams const trainers(1);
  auto const before = streams();
  {
    zero::Nccl<> comm({zero::Nccl<>::unique_id(), 0, 1, trainers.handles[0]}, {});
    // One for NCCL and one for sums of pieces.
    CHECK(streams() == std::array{before[0] + 2, before[1]});
    comm.close();
  }
  CHECK(streams() == before);
}

}  // namespace
}  // namespace priority_test
