/// @file
/// Streams, events and graphs of the emulated runtime, and what capture does to them.
#pragma once

#include "cuda/machine.hpp"
#include "support/standard.hpp"

#include <cuda_runtime_api.h>

namespace emulated {

/// Work that was captured: nodes in the order of the calls, each after others.
struct Capture {
  struct Node {
    std::function<bool(std::size_t)> run;  ///< in the n-th launch; false: not yet
    std::set<std::size_t> after;
  };
  CUstream_st* origin = nullptr;
  std::thread::id thread;  ///< that began it
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  bool valid = true;
  bool ended = false;
  std::thread::id inside;  ///< whose call adds to it right now
  std::vector<Node> nodes;
  int graphs = 0;  ///< that the program holds
  std::size_t launches = 0;

  /// Adds a node after those of `frontier`, which it takes the place of.
  void add(std::function<bool(std::size_t)> run, std::set<std::size_t>& frontier) {
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
};

/// One launch of a graph. Of the nodes that need not come after others, the latest runs first.
class Replay {
 public:
  Replay(std::shared_ptr<Capture> capture, fake::Stream* queue)
      : capture_(std::move(capture)),
        queue_(queue),
        launch_(capture_->launches++),
        done_(capture_->nodes.size(), 0),
        left_(done_.size()) {}

  /// Puts it into its stream.
  static void enqueue(std::shared_ptr<Replay> const& replay);

 private:
  /// Runs what can be run; false if other threads have not enqueued yet what the rest waits for.
  bool attempt();
  /// Runs one node, if one can be run.
  bool advance();

  std::shared_ptr<Capture> capture_;
  fake::Stream* queue_;
  std::size_t position_ = 0;  ///< in the stream
  std::size_t launch_;
  std::vector<char> done_;
  std::size_t left_;
  bool busy_ = false;
};

}  // namespace emulated

struct CUstream_st {
  int device = 0;
  int priority = 0;
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

namespace emulated {

/// What the program holds of a capture.
struct Held {
  explicit Held(std::shared_ptr<Capture> what) : capture(std::move(what)) { ++capture->graphs; }
  ~Held() { --capture->graphs; }
  Held(Held const&) = delete;
  Held& operator=(Held const&) = delete;
  std::shared_ptr<Capture> capture;
};

}  // namespace emulated

struct CUgraph_st : emulated::Held {
  using Held::Held;
};

struct CUgraphExec_st : emulated::Held {
  using Held::Held;
};
