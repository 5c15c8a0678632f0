/// @file
/// The ranks of a group as one of them sees them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/topology.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Who is who, and whose memory this rank sees.
class Peers {
 public:
  /// @param world  the ranks' numbers in the family
  /// @param node_control  control block of the node's first rank in the family's first group
  Peers(int rank, std::vector<int> world, Topology topology, Control* node_control)
      : rank_(rank),
        world_(std::move(world)),
        topology_(std::move(topology)),
        node_control_(node_control),
        controls_(world_.size(), nullptr),
        pools_(world_.size(), nullptr) {}

  /// Makes a rank's memory known.
  /// @param pool  null if it has none
  void see(int rank, Control* control, std::byte* pool) noexcept {
    controls_[index(rank)] = control;
    pools_[index(rank)] = pool;
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_.size()); }
  /// A rank's number in the family.
  [[nodiscard]] int world_rank(int rank) const noexcept { return world_[index(rank)]; }
  [[nodiscard]] Topology const& topology() const noexcept { return topology_; }
  [[nodiscard]] Control& node_control() const noexcept { return *node_control_; }
  /// True for ranks whose memory this one sees, itself too.
  [[nodiscard]] bool is_local(int rank) const noexcept { return controls_[index(rank)] != nullptr; }
  /// The local ranks, in order.
  [[nodiscard]] std::vector<int> const& local_ranks() const noexcept {
    return topology_.ranks(topology_.node(rank_));
  }
  /// Of a local rank.
  [[nodiscard]] Control& control(int rank) const noexcept { return *controls_[index(rank)]; }
  [[nodiscard]] Control& own() const noexcept { return control(rank_); }
  /// Calls that a local rank has made.
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept {
    return control(rank).posted.load(std::memory_order_acquire);
  }
  /// True while a rank may still read this one's memory for a collective.
  [[nodiscard]] bool reads_on(int rank, std::uint64_t number) const noexcept {
    return control(rank).slot(number).done.load(std::memory_order_acquire) <= number;
  }
  /// Start of a rank's pool, or null.
  [[nodiscard]] std::byte* pool(int rank) const noexcept { return pools_[index(rank)]; }

 private:
  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }

  int rank_;
  std::vector<int> world_;
  Topology topology_;
  Control* node_control_;
  std::vector<Control*> controls_;
  std::vector<std::byte*> pools_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
