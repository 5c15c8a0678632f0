/// @file
/// Where the data of a collective is to be found: in memory that this rank sees, or in messages.
#pragma once

#include "zero/base/config.hpp"
#include "zero/comm/mpi/flight.hpp"
#include "zero/comm/mpi/options.hpp"
#include "zero/comm/mpi/peers.hpp"
#include "zero/comm/mpi/roll.hpp"
#include "zero/comm/mpi/route.hpp"
#include "zero/comm/shared/node_bytes.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::mpi::detail {

/// Decides by what all ranks have announced, so that source and target come to the same answer.
class Sources {
 public:
  /// @param native  MPI reduces what the ranks of a node cannot
  Sources(Peers const& peers, Roll const& roll, bool native, Sums sums)
      : peers_(&peers), roll_(&roll), native_(native), sums_(sums), flat_because_(never_chained()) {
    if (flat_because_.empty()) flat_because_ = "there was no sum yet";
  }

  /// The way of a collective on which all ranks agree.
  [[nodiscard]] Route route(Flight const& flight) {
    Topology const& topology = peers_->topology();
    bool const spread = topology.nodes() > 1;
    Collective const& op = flight.op;
    Route route;
    if (native_ && zero::detail::is_reduction(op.op)) {
      bool const by_node = spread && topology.has_neighbours() && !is_small_sum(op);
      bool const seen = roll_->agreed().sends_seen;
      route.by_node = by_node && seen;
      route.by_library = !route.by_node && (spread || !seen);
    } else if (zero::detail::is_reduction(op.op) && !is_small_sum(op)) {
      flat_because_ = not_chained(flight);
      route.chained = flat_because_.empty();
    }
    route.relayed = spread && topology.has_neighbours() && !route.by_library && is_relayable(op) &&
                    roll_->agreed().receives_seen;
    return route;
  }

  /// Why the last sum of more than 2 KiB was not chained; empty if it was.
  [[nodiscard]] std::string_view flat_because() const noexcept { return flat_because_; }

  [[nodiscard]] Hop hop(Flight const& flight, int pass, int source, int target) const {
    return detail::hop(flight.op, flight.route, peers_->topology(), pass, source, target);
  }

  /// Memory of a hop's holder that this rank may read, or null.
  [[nodiscard]] std::byte const* seen(Flight const& flight, Hop const& hop) const noexcept {
    if (hop.holder == peers_->rank()) {
      return hop.part.result ? static_cast<std::byte const*>(flight.op.recv) : flight.send;
    }
    if (!peers_->is_near(hop.holder)) return nullptr;
    Slot& slot = peers_->control(hop.holder).slot(flight.sequence);
    std::int64_t const at = hop.part.result ? slot.call.recv_at : slot.call.send_at;
    if (at == inlined) return slot.copy;
    std::byte const* const pool = peers_->pool(hop.holder);
    return at == outside || pool == nullptr ? nullptr : pool + at;
  }

  /// True if chunks carry a hop's data from `source` to `target`; one of them is this rank.
  [[nodiscard]] bool is_sent(Flight const& flight, Hop const& hop, int source, int target) const {
    if (source == target || hop.part.count == 0) return false;
    int const other = source == peers_->rank() ? target : source;
    if (!peers_->is_near(other)) return hop.holder == source;
    Call const& call = roll_->call_of(flight.sequence, hop.holder);
    return (hop.part.result ? call.recv_at : call.send_at) == outside;
  }

  /// True if a result that this rank reads in its holder's memory is there.
  [[nodiscard]] bool is_ready(Flight const& flight, Hop const& hop) const noexcept {
    return !hop.part.result || peers_->control(hop.holder)
                                   .slot(flight.sequence)
                                   .has_passed(flight.sequence, flight.pass);
  }

 private:
  /// What keeps this group's sums from being chained, whatever their size.
  [[nodiscard]] std::string_view never_chained() const noexcept {
    Topology const& topology = peers_->topology();
    if (topology.nodes() == 1) return "the group is on one node";
    if (native_) return "mpi::Native adds in an order of its own";
    if (sums_ == Sums::flat) return "Options::sums is flat";
    if (!topology.is_consecutive()) return "ranks of a node are not consecutive in the group";
    return {};
  }
  [[nodiscard]] std::string_view not_chained(Flight const& flight) const {
    if (std::string_view const always = never_chained(); !always.empty()) return always;
    Collective const& op = flight.op;
    Transfer const block = transfer(op, 0, 0, 0, peers_->size());
    if (block.count * size_of(op.dtype) <= zero::detail::unchained_bytes) {
      return "the blocks of the last sum were at most 2 KiB";
    }
    if (sums_ == Sums::automatic && !chain_pays(peers_->topology(), op)) {
      return "a chain would not have paid for the last sum";
    }
    if (!roll_->agreed().sends_seen) {
      return "a send buffer of the last sum was not in its node's window";
    }
    return {};
  }

  Peers const* peers_;
  Roll const* roll_;
  bool native_;
  Sums sums_;
  std::string_view flat_because_;
};

}  // namespace zero::inline ZERO_NAMESPACE::mpi::detail
