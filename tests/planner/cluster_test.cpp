#include "plan/model/cluster.hpp"

#include "support/refusal.hpp"

#include <doctest/doctest.h>

namespace cluster_test {

using namespace plan;
using plan::Cluster;

TEST_CASE("clusters are found by name, and complete") {
  for (Cluster const& cluster : known_clusters()) {
    CAPTURE(cluster.name);
    CHECK(cluster_of(cluster.name) == cluster);
    CHECK(cluster.devices_per_node >= 1);
    CHECK_NOTHROW(cluster.validate());
    CHECK(cluster.device.memory > 0);
    CHECK(cluster.host_memory > cluster.device.memory);
    CHECK(cluster.inside.rate >= cluster.network_rate());
  }
  // The paper's: 800 Gb/s out of a node of 16.
  Cluster const dgx2 = cluster_of("dgx2-v100");
  CHECK(dgx2.network_rate() * 16 * 8 == 800e9);
  CHECK(dgx2.device.memory == 32'000'000'000);
  CHECK(refusal([] { static_cast<void>(cluster_of("dgx")); }) ==
        "there is no cluster 'dgx': it is one of dgx2-v100, dgx-a100, dgx-h100, cpu2");
}

}  // namespace cluster_test
