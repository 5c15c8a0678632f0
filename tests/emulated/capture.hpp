/// @file
/// Streams, events and graphs of the emulated runtime, and what capture does to them.
#pragma once

#include "cuda/machine.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <vector>

namespace emulated {

/// Work that was captured: nodes in the order of the calls, each after others.
struct Capture {
  struct Node {
    std::function<void()> run;
    std::set<std::size_t> after;
  };
  CUstream_st* origin = nullptr;
  std::thread::id thread;  ///< that began it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool valid = true;
  bool ended = false;
  std::vector<Node> nodes;

  /// Adds a node after those of `frontier`, which it takes the place of.
  void add(std::function<void()> run, std::set<std::size_t>& frontier) {
    nodes.push_back({.run = std::move(run), .after = frontier});
    frontier = {nodes.size() - 1};
  }

  /// Whether every node of `frontier` comes before the end of `last` or is there.
  [[nodiscard]] bool joined(std::set<std::size_t> const& frontier,
                            std::set<std::size_t> const& last) const {
    std::set<std::size_t> reached;
    std::vector<std::size_t> open(last.begin(), last.end());
    while (!open.empty()) {
      std::size_t const node = open.back();
      open.pop_back();
      if (!reached.insert(node).second) continue;
      open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
    }
    for (std::size_t const node : frontier) {
      if (reached.count(node) == 0) return false;
    }
    return true;
  }

  /// Runs all nodes, the latest first as far as they need not come after others.
  void replay() const {
    std::vector<char> done(nodes.size(), 0);
    for (std::size_t left = nodes.size(); left > 0; --left) {
      std::size_t pick = nodes.size();
      for (std::size_t n = nodes.size(); n-- > 0 && pick == nodes.size();) {
        if (done[n] != 0) continue;
        bool ready = true;
        for (std::size_t const before : nodes[n].after) ready = ready && done[before] != 0;
        if (ready) pick = n;
      }
      nodes[pick].run();
      done[pick] = 1;
    }
  }
};

}  // namespace emulated

struct CUstream_st {
  int device = 0;
  fake::Stream* queue = nullptr;
  std::shared_ptr<emulated::Capture> capture;  ///< while it is captured
  std::set<std::size_t> frontier;              ///< the nodes that its next comes after
};

struct CUevent_st {
  int device = 0;
  fake::Event* event = nullptr;
  bool recorded = false;
  std::shared_ptr<emulated::Capture> capture;  ///< that it was last recorded in
  std::set<std::size_t> frontier;              ///< the nodes before it
};

struct CUgraph_st {
  std::shared_ptr<emulated::Capture const> capture;
};

struct CUgraphExec_st {
  std::shared_ptr<emulated::Capture const> capture;
};
