/// @file
/// The ranks of a group as one of them sees them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/control.hpp"
#include "zero/comm/mpi/summary.hpp"
#include "zero/comm/mpi/topology.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Who is who, and whose memory this rank sees.
class Peers {
 public:
  /// @param world  the ranks' numbers in the family
  Peers(int rank, std::vector<int> world, Topology topology)
      : rank_(rank),
        world_(std::move(world)),
        topology_(std::move(topology)),
        controls_(world_.size(), nullptr),
        firsts_(world_.size(), nullptr),
        pools_(world_.size(), nullptr) {}

  /// Makes a rank's memory known.
  /// @param first  its control block in the family's first group
  /// @param pool   null if it has none
  void see(int rank, Control* control, Control* first, std::byte* pool) noexcept {
    controls_[index(rank)] = control;
    firsts_[index(rank)] = first;
    pools_[index(rank)] = pool;
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(world_.size()); }
  /// A rank's number in the family.
  [[nodiscard]] int world_rank(int rank) const noexcept { return world_[index(rank)]; }
  [[nodiscard]] Topology const& topology() const noexcept { return topology_; }
  /// True for ranks whose memory this one sees, itself too.
  [[nodiscard]] bool is_near(int rank) const noexcept { return controls_[index(rank)] != nullptr; }
  /// The ranks that are near, in order.
  [[nodiscard]] std::vector<int> const& near() const noexcept {
    return topology_.ranks(topology_.node(rank_));
  }
  /// The rank that speaks for this node.
  [[nodiscard]] int leader() const noexcept { return near().front(); }
  [[nodiscard]] bool is_leader(int rank) const noexcept { return topology_.place(rank) == 0; }
  /// Of a rank that is near.
  [[nodiscard]] Control& control(int rank) const noexcept { return *controls_[index(rank)]; }
  [[nodiscard]] Control& own() const noexcept { return control(rank_); }
  /// Calls that a rank has made which is near.
  [[nodiscard]] std::uint64_t posted_by(int rank) const noexcept {
    return control(rank).posted.load(std::memory_order_acquire);
  }
  /// Calls that all ranks have made which are near.
  [[nodiscard]] std::uint64_t posted_near() const noexcept {
    std::uint64_t least = never;
    for (int const peer : near()) least = (std::min)(least, posted_by(peer));
    return least;
  }
  /// What the ranks that are near called; once they have.
  [[nodiscard]] Summary calls_near(std::uint64_t sequence) const noexcept {
    Summary result;
    bool const alone = near().size() == 1;
    for (int const peer : near()) {
      result.add(Summary::of(peer, control(peer).slot(sequence).call, alone));
    }
    return result;
  }
  /// True if a rank is seen to wait for others, in whatever group.
  [[nodiscard]] bool is_waiting(int rank) const noexcept {
    return is_near(rank) && firsts_[index(rank)]->waiting.load(std::memory_order_acquire) != 0;
  }
  /// This rank waits until the end of this object's scope, which others see.
  class Waiting {
   public:
    explicit Waiting(Peers const& peers) noexcept : peers_(&peers) { peers.tell_waiting(true); }
    Waiting(Waiting const&) = delete;
    Waiting& operator=(Waiting const&) = delete;
    ~Waiting() { peers_->tell_waiting(false); }

   private:
    Peers const* peers_;
  };
  /// True while a rank may still read this one's memory for a collective.
  [[nodiscard]] bool reads_on(int rank, std::uint64_t sequence) const noexcept {
    return is_near(rank) &&
           control(rank).slot(sequence).done.load(std::memory_order_acquire) <= sequence;
  }
  /// Start of a rank's pool, or null.
  [[nodiscard]] std::byte* pool(int rank) const noexcept { return pools_[index(rank)]; }

 private:
  /// Lets others see whether this rank waits.
  void tell_waiting(bool waits) const noexcept {
    firsts_[index(rank_)]->waiting.store(waits ? 1 : 0, std::memory_order_release);
  }
  [[nodiscard]] static constexpr std::size_t index(int rank) noexcept {
    return static_cast<std::size_t>(rank);
  }

  int rank_;
  std::vector<int> world_;
  Topology topology_;
  std::vector<Control*> controls_;
  std::vector<Control*> firsts_;
  std::vector<std::byte*> pools_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
