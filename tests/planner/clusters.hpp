/// @file
/// A cluster whose numbers can be followed, and how its times are compared.
#pragma once

#include "plan/model/cluster.hpp"

#include <doctest/doctest.h>

namespace tests {

/// Relative: beside the absolute term of doctest's own microseconds are nothing.
inline doctest::Approx Approx(double value) { return doctest::Approx(value).scale(0.); }

/// 1 µs and 100 GB/s inside a node, 10 µs and two adapters of 10 GB/s between nodes.
inline plan::Cluster plain() {
  return {.name = "plain",
          .devices_per_node = 4,
          .device = {.memory_rate = 1e12, .flops = 1e14, .processors = 10, .launch = 1e-6},
          .inside = {.latency = 1e-6, .rate = 100e9},
          .between = {.latency = 10e-6, .rate = 10e9},
          .adapters = 2,
          .adapters_per_group = 2,
          .host = {.rate = 1e9}};
}

}  // namespace tests
