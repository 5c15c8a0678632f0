/// @file
/// The machines that a run is planned for, as plain data: what their devices and links can do.
#pragma once

#include "timing.hpp"
#include "zero/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plan {

using namespace zero;

/// A way for bytes, in one direction.
struct Link {
  /// How much of its rate a link reaches with messages of so many bytes.
  struct Point {
    double payload = 0.;   ///< bytes
    double fraction = 1.;  ///< of `rate`, above 0
    friend bool operator==(Point const&, Point const&) = default;
  };

  double latency = 0.;   ///< seconds from a send to its arrival, however small
  double rate = 0.;      ///< bytes a second, as data sheets say
  double fraction = 1.;  ///< of `rate`, what software reaches
  /// Ascending payloads, between which log(payload) counts: fractions beside the other one. Empty:
  /// the same rate always.
  std::vector<Point> curve{};

  /// Bytes a second that messages of this payload reach.
  [[nodiscard]] double rate_of(double payload) const {
    double const best = rate * fraction;
    if (curve.empty()) return best;
    if (payload <= curve.front().payload) return best * curve.front().fraction;
    for (std::size_t i = 1; i < curve.size(); ++i) {
      Point const& low = curve[i - 1];
      Point const& high = curve[i];
      if (payload > high.payload) continue;
      double const t = std::log(payload / low.payload) / std::log(high.payload / low.payload);
      return best * (low.fraction + t * (high.fraction - low.fraction));
    }
    return best * curve.back().fraction;
  }
  friend bool operator==(Link const&, Link const&) = default;
};

/// One processor with its memory.
struct Device {
  std::string name{};              ///< for people
  std::uint64_t memory = 0;        ///< bytes
  double memory_rate = 0.;         ///< bytes a second, read and written, as data sheets say
  double memory_fraction = 1.;     ///< of it, what plain kernels reach
  double flops = 0.;               ///< of 16-bit products with fp32 sums, a second, likewise
  double matrix_fraction = 1.;     ///< of them, what large products reach
  double attention_fraction = 0.;  ///< of them, what fused attention reaches; 0: there is none
  int processors = 1;              ///< multiprocessors, which share a product in tiles
  double launch = 0.;  ///< seconds from the end of one kernel to the next one's beginning
  /// By name, where it was measured how long kinds of work take: these count before any rate.
  std::vector<Timing> measured{};

  /// What was measured under that name; null where nothing was.
  [[nodiscard]] Timing const* timing(std::string_view what) const {
    for (Timing const& one : measured) {
      if (one.name == what) return &one;
    }
    return nullptr;
  }
  /// Seconds of work that has to have been measured.
  /// @param what  its name
  /// @param of    its sizes
  /// @throws Error (invalid_argument) if it was not, or with other sizes
  [[nodiscard]] double timed(std::string_view what, std::initializer_list<double> of) const {
    Timing const* const known = timing(what);
    if (known != nullptr) return known->at(of);
    fail(ErrorKind::invalid_argument,
         {"of '", name, "' it was not measured how long '", what, "' takes: zero-plan calibrate"});
  }
  /// Seconds of a kernel that moves so many bytes through memory.
  [[nodiscard]] double pass(double bytes) const {
    return launch + bytes / (memory_rate * memory_fraction);
  }
  /// The same of a kind that may have been measured, by bytes.
  [[nodiscard]] double pass(double bytes, std::string_view what) const {
    Timing const* const known = bytes > 0. ? timing(what) : nullptr;
    return known != nullptr ? known->at({bytes}) : pass(bytes);
  }
  /// Seconds of fused attention with so many operations: products and softmax by blocks of scores,
  /// which are never written.
  /// @throws Error (invalid_argument) if the device has no such kernel
  /// @par Source  FlashAttention-2 and -3, arXiv 2307.08691 and 2407.08608
  [[nodiscard]] double attention(double operations) const {
    if (attention_fraction > 0.) return launch + operations / (flops * attention_fraction);
    fail(ErrorKind::invalid_argument,
         {"of '", name, "' no fused attention is known: its attention is plain or selective"});
  }
  /// Seconds of `batch` products [m, k] x [k, n] of 16-bit elements.
  ///
  /// A product is cut into tiles of 128 x 128, of which every multiprocessor has one at a time: the
  /// last round is as long as a full one, and a ragged tile as a whole one. Reading operands and
  /// writing the result takes at least its time in memory.
  [[nodiscard]] double product(double m, double n, double k, double batch = 1.) const {
    constexpr double tile = 128.;
    double const tiles = std::ceil(m / tile) * std::ceil(n / tile) * batch;
    double const rounds = std::ceil(tiles / processors);
    double const of_tile = 2. * tile * tile * k / (flops * matrix_fraction / processors);
    double const bytes = 2. * batch * (m * k + k * n + m * n);
    return launch + (std::max)(rounds * of_tile, bytes / (memory_rate * memory_fraction));
  }
  friend bool operator==(Device const&, Device const&) = default;
};

/// Equal devices in equal nodes. Rates are those of data sheets; fractions, latencies and
/// `adapters_per_group` of the known ones are assumptions, to be calibrated.
struct Cluster {
  std::string name = "cluster";   ///< as `--cluster` names it
  int devices_per_node = 1;       ///< ranks of one model are on one node
  std::uint64_t host_memory = 0;  ///< bytes of a node
  Device device{};                ///< each of them
  Link inside{};                  ///< of a device to others of its node
  Link between{};                 ///< of one adapter of a node to other nodes
  int adapters = 1;               ///< of a node, shared by all groups that have ranks on it
  int adapters_per_group = 1;     ///< that the ranks of one group use at once, at most
  Link host{};                    ///< of a device to and from its host's memory
  /// How far simulated steps of trainings that set nothing here were from measured ones, at most,
  /// as a part of these; 0: nobody has held them against any.
  double error = 0.;
  /// Do the ranks' own processors carry out collectives, while the ranks wait for them, as threads
  /// of one process do? Then nothing is under way beside a rank's computation.
  bool by_ranks = false;

  /// Bytes a second that each device of a node sends to other nodes when all do.
  [[nodiscard]] double network_rate() const { return between.rate * adapters / devices_per_node; }
  /// Adapters for one of so many groups that use a node's at once.
  [[nodiscard]] double adapters_of(int sharing) const {
    return (std::min)(static_cast<double>(adapters_per_group),
                      static_cast<double>(adapters) / sharing);
  }
  /// @throws Error (invalid_argument) naming what makes no sense
  void validate() const {
    auto const require = [&](double value, std::string_view what) {
      if (std::isfinite(value) && value > 0.) return;
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
    if (!(device.attention_fraction >= 0.)) {
      require(device.attention_fraction, "the fraction of fused attention");
    }
    for (Timing const& timing : device.measured) timing.validate();
    for (auto const& [link, which] :
         {std::pair{&inside, "inside a node"}, {&between, "between nodes"}, {&host, "to hosts"}}) {
      require(link->rate, std::string("the rate ") + which);
      require(link->fraction, std::string("the fraction of the rate ") + which);
      double before = 0.;
      for (Link::Point const& point : link->curve) {
        require(point.fraction, std::string("a fraction of the curve ") + which);
        require(point.payload - before, std::string("a step of payloads of the curve ") + which);
        before = point.payload;
      }
    }
  }
  friend bool operator==(Cluster const&, Cluster const&) = default;
};

/// Clusters that are known by name: the paper's (16 V100 of 32 GB a node, 800 Gb/s between nodes),
/// NVIDIA's later ones of 8 devices a node, and two ranks on a machine of two cores.
/// @par Source  data sheets of DGX-2, DGX A100, H100, H200 and B200: NVLink 300, 600, 900 and 1,800
///   GB/s both ways together; 8 adapters of 100, 200 and 400 Gb/s a node; PCIe 3, 4 and 5 with 16
///   lanes. The fractions of A100 and H100 are those of `validate-plan rows`; later devices have
///   H100's, for want of rows
[[nodiscard]] inline std::vector<Cluster> known_clusters() {
  constexpr std::uint64_t GB = 1'000'000'000;
  Cluster const dgx2{.name = "dgx2-v100",
                     .devices_per_node = 16,
                     .host_memory = 1500 * GB,
                     .device = {.name = "V100 32 GB",
                                .memory = 32 * GB,
                                .memory_rate = 900e9,
                                .memory_fraction = 0.8,
                                .flops = 125e12,
                                .matrix_fraction = 0.6,
                                .processors = 80,
                                .launch = 5e-6},
                     .inside = {.latency = 5e-6, .rate = 150e9, .fraction = 0.8},
                     .between = {.latency = 10e-6, .rate = 12.5e9, .fraction = 0.8},
                     .adapters = 8,
                     .adapters_per_group = 8,
                     .host = {.latency = 10e-6, .rate = 16e9, .fraction = 0.8}};
  Cluster const a100{.name = "dgx-a100",
                     .devices_per_node = 8,
                     .host_memory = 2000 * GB,
                     .device = {.name = "A100 80 GB",
                                .memory = 80 * GB,
                                .memory_rate = 2039e9,
                                .memory_fraction = 1.,
                                .flops = 312e12,
                                .matrix_fraction = 0.709,
                                .attention_fraction = 0.339,
                                .processors = 108,
                                .launch = 4e-6},
                     .inside = {.latency = 4e-6, .rate = 300e9, .fraction = 0.8},
                     .between = {.latency = 8e-6, .rate = 25e9, .fraction = 0.8},
                     .adapters = 8,
                     .adapters_per_group = 8,
                     .host = {.latency = 10e-6, .rate = 32e9, .fraction = 0.8},
                     .error = 0.12};
  Cluster const h100{.name = "dgx-h100",
                     .devices_per_node = 8,
                     .host_memory = 2000 * GB,
                     .device = {.name = "H100 80 GB",
                                .memory = 80 * GB,
                                .memory_rate = 3350e9,
                                .memory_fraction = 0.425,
                                .flops = 989e12,
                                .matrix_fraction = 0.594,
                                .attention_fraction = 0.3,
                                .processors = 132,
                                .launch = 4e-6},
                     .inside = {.latency = 4e-6, .rate = 450e9, .fraction = 0.8},
                     .between = {.latency = 8e-6, .rate = 50e9, .fraction = 0.8},
                     .adapters = 8,
                     .adapters_per_group = 8,
                     .host = {.latency = 10e-6, .rate = 64e9, .fraction = 0.8},
                     .error = 0.12};
  Cluster h200 = h100;
  h200.name = "dgx-h200";
  h200.device.name = "H200 141 GB";
  h200.device.memory = 141 * GB;
  h200.device.memory_rate = 4800e9;
  h200.error = 0.;
  Cluster b200 = h200;
  b200.name = "dgx-b200";
  b200.device.name = "B200 180 GB";
  b200.device.memory = 180 * GB;
  b200.device.memory_rate = 8000e9;
  b200.device.flops = 2250e12;
  b200.device.processors = 148;
  b200.inside.rate = 900e9;
  Cluster const cpu2{.name = "cpu2",
                     .devices_per_node = 2,
                     .host_memory = 8 * GB,
                     .device = {.name = "one core",
                                .memory = 2 * GB,
                                .memory_rate = 10e9,
                                .flops = 50e9,
                                .launch = 1e-7},
                     .inside = {.latency = 1e-6, .rate = 5e9},
                     .between = {.latency = 20e-6, .rate = 2e9},
                     .host = {.latency = 1e-6, .rate = 5e9}};
  return {dgx2, a100, h100, h200, b200, cpu2};
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

}  // namespace plan
