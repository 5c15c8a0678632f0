/// @file
/// A cluster as plain data: what its devices and links can do.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/number.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::simulate {

/// A way for bytes, in one direction.
struct Link {
  /// How much of its rate a link reaches with messages of so many bytes.
  struct Point {
    double payload = 0.;   ///< bytes
    double fraction = 1.;  ///< of `rate`, above 0 and at most 1
  };

  double latency = 0.;         ///< seconds from a send to its arrival, however small
  double rate = 0.;            ///< bytes a second at best
  std::vector<Point> curve{};  ///< ascending payloads, between which log(payload) counts; may be
                               ///< empty: the full rate always

  /// Bytes a second that messages of this payload reach.
  ZERO_APART [[nodiscard]] double rate_of(double payload) const;
};

/// One processor with its memory.
struct Device {
  std::string name{};        ///< for people
  std::uint64_t memory = 0;  ///< bytes
  double memory_rate = 0.;   ///< bytes a second, read and written
  double flops = 0.;         ///< of 16-bit matrix products with fp32 sums, a second, at most
  int processors = 1;        ///< multiprocessors, which share a product in tiles
  double launch = 0.;        ///< seconds from the end of one kernel to the next one's beginning
  /// Of `flops`, what the largest products reach; of `memory_rate`, what plain kernels reach.
  double matrix_fraction = 1.;
  double memory_fraction = 1.;  ///< see above

  /// Seconds of a kernel that moves so many bytes through memory.
  [[nodiscard]] double pass(double bytes) const {
    return launch + bytes / (memory_rate * memory_fraction);
  }
  /// Seconds of `batch` products [m, k] x [k, n] of 16-bit elements.
  ///
  /// A product is cut into tiles of 128 x 128, of which every multiprocessor has one at a time: the
  /// last round is as long as a full one, and a ragged tile as a whole one. Reading operands and
  /// writing the result takes at least its time in memory.
  ZERO_APART [[nodiscard]] double product(double m, double n, double k, double batch = 1.) const;
};

/// Nodes of equal devices.
///
/// The presets have the data sheets' numbers. The fractions that software reaches are assumptions,
/// to be calibrated: they say so.
struct Cluster {
  std::string name{};          ///< for people
  int devices_per_node = 1;    ///< that share memory or fast links, and the node's adapters
  Device device{};             ///< each of them
  Link inside{};               ///< of one device to the others of its node
  Link between{};              ///< of one adapter of a node to other nodes
  int adapters = 1;            ///< of a node, shared by all groups that have ranks on it
  int adapters_per_group = 1;  ///< that the ranks of one group use at once, at most

  /// @throws Error (invalid_argument) naming what makes no sense
  ZERO_APART void validate() const;
};

/// The paper's: 16 V100 of 32 GB behind NVSwitch, 8 adapters of 100 Gbit/s (arXiv 1910.02054 §10).
ZERO_APART [[nodiscard]] Cluster dgx2_v100();
/// 8 A100 of 80 GB, 8 adapters of 200 Gbit/s.
ZERO_APART [[nodiscard]] Cluster dgx_a100();
/// 8 H100 of 80 GB, 8 adapters of 400 Gbit/s.
ZERO_APART [[nodiscard]] Cluster dgx_h100();
/// Two cores of one processor that share its memory; no second node.
ZERO_APART [[nodiscard]] Cluster cpu_2_cores();

/// All presets.
ZERO_APART [[nodiscard]] std::vector<Cluster> clusters();
/// The preset of that name.
/// @throws Error (invalid_argument) naming those that there are
ZERO_APART [[nodiscard]] Cluster cluster_named(std::string const& name);

#if ZERO_BODIES

ZERO_BODY double Link::rate_of(double payload) const {
  if (curve.empty() || payload <= curve.front().payload) {
    return rate * (curve.empty() ? 1. : curve.front().fraction);
  }
  for (std::size_t i = 1; i < curve.size(); ++i) {
    Point const& low = curve[i - 1];
    Point const& high = curve[i];
    if (payload > high.payload) continue;
    double const t = std::log(payload / low.payload) / std::log(high.payload / low.payload);
    return rate * (low.fraction + t * (high.fraction - low.fraction));
  }
  return rate * curve.back().fraction;
}

ZERO_BODY double Device::product(double m, double n, double k, double batch) const {
  constexpr double tile = 128.;
  double const tiles = std::ceil(m / tile) * std::ceil(n / tile) * batch;
  double const rounds = std::ceil(tiles / processors);
  double const of_tile = 2. * tile * tile * k / (flops * matrix_fraction / processors);
  double const bytes = 2. * batch * (m * k + k * n + m * n);
  return launch + (std::max)(rounds * of_tile, bytes / (memory_rate * memory_fraction));
}

ZERO_BODY void Cluster::validate() const {
  auto const require = [&](double value, char const* what) {
    if (zero::detail::is_finite(value) && value > 0.) return;
    fail(ErrorKind::invalid_argument,
         {"cluster '", name, "': ", what, " is ", value, ", not above 0"});
  };
  require(devices_per_node, "devices per node");
  require(adapters, "adapters of a node");
  require(adapters_per_group, "adapters per group");
  require(device.processors, "a device's multiprocessors");
  require(device.flops, "a device's flops");
  require(device.memory_rate, "a device's memory rate");
  require(device.matrix_fraction, "the fraction of a device's flops");
  require(device.memory_fraction, "the fraction of a device's memory rate");
  require(inside.rate, "the rate inside a node");
  require(between.rate, "the rate between nodes");
  for (Link const* link : {&inside, &between}) {
    double before = 0.;
    for (Link::Point const& point : link->curve) {
      require(point.fraction, "a link's fraction");
      require(point.payload - before, "the distance of a link's payload from the one before");
      before = point.payload;
    }
  }
}

ZERO_BODY Cluster dgx2_v100() {
  return {.name = "dgx2-v100",
          .devices_per_node = 16,
          .device = {.name = "V100 32 GB",
                     .memory = 32ull * 1000 * 1000 * 1000,
                     .memory_rate = 900e9,
                     .flops = 125e12,
                     .processors = 80,
                     .launch = 5e-6,
                     .matrix_fraction = 0.6,
                     .memory_fraction = 0.8},
          .inside = {.latency = 5e-6, .rate = 0.8 * 150e9},
          .between = {.latency = 10e-6, .rate = 0.8 * 12.5e9},
          .adapters = 8,
          .adapters_per_group = 1};
}

ZERO_BODY Cluster dgx_a100() {
  return {.name = "dgx-a100",
          .devices_per_node = 8,
          .device = {.name = "A100 80 GB",
                     .memory = 80ull * 1000 * 1000 * 1000,
                     .memory_rate = 2039e9,
                     .flops = 312e12,
                     .processors = 108,
                     .launch = 4e-6,
                     .matrix_fraction = 0.7,
                     .memory_fraction = 0.8},
          .inside = {.latency = 4e-6, .rate = 0.8 * 300e9},
          .between = {.latency = 8e-6, .rate = 0.8 * 25e9},
          .adapters = 8,
          .adapters_per_group = 8};
}

ZERO_BODY Cluster dgx_h100() {
  return {.name = "dgx-h100",
          .devices_per_node = 8,
          .device = {.name = "H100 80 GB",
                     .memory = 80ull * 1000 * 1000 * 1000,
                     .memory_rate = 3350e9,
                     .flops = 989e12,
                     .processors = 132,
                     .launch = 4e-6,
                     .matrix_fraction = 0.65,
                     .memory_fraction = 0.8},
          .inside = {.latency = 4e-6, .rate = 0.8 * 450e9},
          .between = {.latency = 8e-6, .rate = 0.8 * 50e9},
          .adapters = 8,
          .adapters_per_group = 8};
}

ZERO_BODY Cluster cpu_2_cores() {
  return {.name = "cpu2",
          .devices_per_node = 2,
          .device = {.name = "one core",
                     .memory = 8 * GiB,
                     .memory_rate = 10e9,
                     .flops = 50e9,
                     .launch = 1e-7},
          .inside = {.latency = 1e-6, .rate = 5e9},
          .between = {.latency = 20e-6, .rate = 1.25e9}};
}

ZERO_BODY std::vector<Cluster> clusters() {
  return {dgx2_v100(), dgx_a100(), dgx_h100(), cpu_2_cores()};
}

ZERO_BODY Cluster cluster_named(std::string const& name) {
  std::string known;
  for (Cluster& cluster : clusters()) {
    if (cluster.name == name) return cluster;
    known += (known.empty() ? "" : ", ") + cluster.name;
  }
  fail(ErrorKind::invalid_argument, {"there is no cluster '", name, "'; there are ", known});
}

#endif  // ZERO_BODIES

}  // namespace zero::inline ZERO_NAMESPACE::simulate
