/// @file
/// The machines that a run is planned for, as plain data.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::planner {

/// Equal devices in equal nodes. Bandwidths are what data sheets say, in bytes a second that one
/// device sends; a program reaches less.
struct Cluster {
  std::string name = "cluster";     ///< as `--cluster` names it
  int devices_per_node = 1;         ///< ranks of one model are on one node
  std::uint64_t device_memory = 0;  ///< bytes of a device
  std::uint64_t host_memory = 0;    ///< bytes of a node
  double node_bandwidth = 0;        ///< to devices of the same node
  double network_bandwidth = 0;     ///< to devices of other nodes
  double host_bandwidth = 0;        ///< to and from the host's memory
  friend bool operator==(Cluster const&, Cluster const&) = default;
};

/// Clusters that are known by name: the paper's (16 V100 of 32 GB a node, 800 Gb/s between nodes),
/// NVIDIA's later ones (8 A100 or H100 of 80 GB), and two ranks on a machine of two cores.
/// @par Source  data sheets of DGX-2, DGX A100 and DGX H100: NVLink 300, 600 and 900 GB/s both ways
///   together; 8 adapters of 100, 200 and 400 Gb/s a node; PCIe 3, 4 and 5 with 16 lanes
[[nodiscard]] inline std::vector<Cluster> known_clusters() {
  constexpr std::uint64_t GB = 1'000'000'000;
  return {{.name = "dgx2-v100",
           .devices_per_node = 16,
           .device_memory = 32 * GB,
           .host_memory = 1500 * GB,
           .node_bandwidth = 150e9,
           .network_bandwidth = 6.25e9,
           .host_bandwidth = 16e9},
          {.name = "dgx-a100",
           .devices_per_node = 8,
           .device_memory = 80 * GB,
           .host_memory = 2000 * GB,
           .node_bandwidth = 300e9,
           .network_bandwidth = 25e9,
           .host_bandwidth = 32e9},
          {.name = "dgx-h100",
           .devices_per_node = 8,
           .device_memory = 80 * GB,
           .host_memory = 2000 * GB,
           .node_bandwidth = 450e9,
           .network_bandwidth = 50e9,
           .host_bandwidth = 64e9},
          {.name = "cpu2",
           .devices_per_node = 2,
           .device_memory = 2 * GB,
           .host_memory = 8 * GB,
           .node_bandwidth = 5e9,
           .network_bandwidth = 1e9,
           .host_bandwidth = 5e9}};
}

/// The known cluster of that name.
/// @throws Error (invalid_argument) if there is none
[[nodiscard]] inline Cluster cluster_of(std::string_view name) {
  std::string names;
  for (Cluster const& cluster : known_clusters()) {
    if (cluster.name == name) return cluster;
    names += (names.empty() ? "" : ", ") + cluster.name;
  }
  fail(ErrorKind::invalid_argument, {"there is no cluster '", name, "': it is one of ", names});
}

}  // namespace zero::inline ZERO_NAMESPACE::planner
