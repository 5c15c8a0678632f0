// Threads as ranks over the GPUs there are: accumulation, rules and lent memory.
#include "cuda/streams.hpp"
#include "differential/check_cases.hpp"
// The reference, compiled with the flags of this file: on a host that fuses, as a device does.
#include "differential/case.cpp"
#include "differential/reference.cpp"

namespace policies_test {
namespace {

TEST_CASE("InProcessCuda trains to the host's bits with every accumulation, rule and memory") {
  differential::check_policies<DeviceWorld>(2, 8);
}

}  // namespace
}  // namespace policies_test
