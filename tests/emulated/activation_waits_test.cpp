// What activations on devices make the host wait for: nothing, between construction and a download.
#include "cuda/placements.cuh"
#include "emulated/runtime.hpp"
#include "support/test.hpp"
#include "zero/activations.hpp"

namespace activation_waits_test {
namespace {

TEST_CASE("emulated: neither copies nor calls of activations wait for a device") {
  std::size_t const before = emulated::spinning_copies();
  placements::check(2, emulated::host_waits);
  CHECK(emulated::spinning_copies() == before);
}

}  // namespace
}  // namespace activation_waits_test
