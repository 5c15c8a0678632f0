/// @file
/// Which ranks of a group share a node. Pure logic.
#pragma once

#include "zero/base/config.hpp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Where what is known of a rank stands in a list.
[[nodiscard]] constexpr std::size_t index(int rank) noexcept {
  return static_cast<std::size_t>(rank);
}

/// The nodes of a group, numbered in the order of their first ranks.
class Topology {
 public:
  /// @param labels  by rank: equal for ranks of one node
  explicit Topology(std::vector<int> const& labels) : node_(labels.size()), place_(labels.size()) {
    std::vector<int> seen;
    for (std::size_t rank = 0; rank < labels.size(); ++rank) {
      auto const known = std::find(seen.begin(), seen.end(), labels[rank]);
      auto const node = static_cast<std::size_t>(known - seen.begin());
      if (known == seen.end()) {
        seen.push_back(labels[rank]);
        ranks_.emplace_back();
      }
      node_[rank] = node;
      place_[rank] = ranks_[node].size();
      ranks_[node].push_back(static_cast<int>(rank));
    }
  }

  [[nodiscard]] int size() const noexcept { return static_cast<int>(node_.size()); }
  [[nodiscard]] std::size_t nodes() const noexcept { return ranks_.size(); }
  [[nodiscard]] std::size_t node(int rank) const noexcept { return node_[index(rank)]; }
  /// A rank's place among those of its node.
  [[nodiscard]] int place(int rank) const noexcept { return static_cast<int>(place_[index(rank)]); }
  /// The ranks of a node, in order.
  [[nodiscard]] std::vector<int> const& ranks(std::size_t node) const noexcept {
    return ranks_[node];
  }
  [[nodiscard]] bool share_node(int a, int b) const noexcept { return node(a) == node(b); }
  /// True if some node has more than one rank.
  [[nodiscard]] bool has_neighbours() const noexcept { return nodes() < node_.size(); }
  /// True if no rank stands between two of another node.
  [[nodiscard]] bool is_consecutive() const noexcept {
    return std::is_sorted(node_.begin(), node_.end());
  }

  /// The rank of a node that stands for all of its ranks towards `rank`, which is on another. The
  /// ranks of a node take turns, so that all of them carry a share of the traffic.
  [[nodiscard]] int delegate(std::size_t node, int rank) const noexcept {
    std::vector<int> const& candidates = ranks_[node];
    return candidates[place_[index(rank)] % candidates.size()];
  }

 private:
  std::vector<std::size_t> node_;
  std::vector<std::size_t> place_;  ///< among the ranks of the node
  std::vector<std::vector<int>> ranks_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
