/// @file
/// What ranks on different nodes tell each other when nothing moves, or when one of them leaves.
/// Pure logic.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/summary.hpp"
#include "zero/comm/mpi/topology.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// What one rank lets another know beside the rounds.
struct Notice {
  enum class Kind : std::int32_t {
    left,            ///< the sender will start nothing more
    left_unwinding,  ///< the same, while an exception was on its way out
    question,        ///< the sender waits: who knows more about `sequence`?
    answer,          ///< sent once per question, as soon as the sender has started that, too
  };

  Kind kind = Kind::left;
  std::int32_t rank = 0;       ///< the sender
  std::uint64_t calls = 0;     ///< that it has made
  std::uint64_t near = 0;      ///< that every rank on its node has made
  std::uint64_t before = 0;    ///< that every rank on the node before is known to have made
  std::uint64_t sequence = 0;  ///< of the collective in question
  std::uint32_t heard = 0;     ///< what of it is known: bit 0 of its node, bit k + 1 of round k
  Summary known{};             ///< of those nodes
};

/// What a rank has been told since it asked. All of it stays true. Takes memory for the first
/// notice only.
///
/// A rank that has started a collective and computes ever since passes nothing on. What others know
/// makes up for that: together they know all that there is to know.
class Inquiry {
 public:
  /// @param topology  lives longer
  explicit Inquiry(Topology const& topology) : topology_(&topology) {}

  /// Files a question or an answer.
  void hear(Notice const& notice) {
    std::size_t const nodes = topology_->nodes();
    if (calls_.empty()) {
      calls_.resize(static_cast<std::size_t>(topology_->size()), 0);
      node_calls_.resize(nodes, 0);
    }
    std::size_t const node = topology_->node(notice.rank);
    raise(calls_[static_cast<std::size_t>(notice.rank)], notice.calls);
    raise(node_calls_[node], notice.near);
    raise(node_calls_[telling_in(0, node, nodes)], notice.before);
    if (notice.heard == 0) return;
    Story& story = find(notice.sequence);
    story.known.add(notice.known);
    if ((notice.heard & 1u) != 0) raise(story.reach[node], 1);
    for (int round = 0; round < rounds(nodes); ++round) {
      if ((notice.heard >> (round + 1) & 1u) == 0) continue;
      raise(story.reach[telling_in(round, node, nodes)], std::uint64_t{1} << round);
    }
  }
  [[nodiscard]] bool has_stories() const noexcept { return !stories_.empty(); }
  /// Forgets collectives before one.
  void forget(std::uint64_t sequence) {
    std::erase_if(stories_, [&](Story const& story) { return story.sequence < sequence; });
  }

  /// What all ranks called, or null as long as something is missing.
  [[nodiscard]] Summary const* all(std::uint64_t sequence) const noexcept {
    for (Story const& story : stories_) {
      if (story.sequence != sequence) continue;
      return story.is_complete() ? &story.known : nullptr;
    }
    return nullptr;
  }

  /// Calls that a rank has said itself to have made.
  [[nodiscard]] std::uint64_t told_by(int rank) const noexcept {
    return calls_.empty() ? 0 : calls_[static_cast<std::size_t>(rank)];
  }
  /// Calls that a rank is known to have made.
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept {
    if (calls_.empty()) return 0;
    return (std::max)(told_by(rank), node_calls_[topology_->node(rank)]);
  }

 private:
  /// What is known of a collective.
  struct Story {
    std::uint64_t sequence;
    Summary known{};
    std::vector<std::uint64_t> reach{};  ///< by node: how many are in `known`, it and ones before

    [[nodiscard]] bool is_complete() const noexcept {
      std::uint64_t left = 0;
      for (std::size_t i = 2 * reach.size(); i-- > 0;) {
        left = (std::max)(left > 0 ? left - 1 : 0, reach[i % reach.size()]);
        if (left == 0 && i < reach.size()) return false;
      }
      return true;
    }
  };

  [[nodiscard]] Story& find(std::uint64_t sequence) {
    for (Story& story : stories_) {
      if (story.sequence == sequence) return story;
    }
    Story story{.sequence = sequence};
    story.reach.resize(topology_->nodes(), 0);
    return stories_.emplace_back(std::move(story));
  }
  static void raise(std::uint64_t& value, std::uint64_t least) noexcept {
    value = (std::max)(value, least);
  }

  Topology const* topology_;
  std::vector<Story> stories_;
  std::vector<std::uint64_t> calls_;       ///< by rank, by its own words
  std::vector<std::uint64_t> node_calls_;  ///< by node, of all its ranks
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
