/// @file
/// A communicator that remembers what went through it.
#pragma once

#include "zero/concepts/communicator.hpp"

#include <cstddef>
#include <vector>

namespace contracts {

/// Records every collective with its addresses and passes it on.
template <zero::Communicator C>
class Recording {
 public:
  using Space = typename C::Space;
  using Ticket = typename C::Ticket;

  explicit Recording(C& comm) : comm_(&comm) { calls_.reserve(10'000); }

  [[nodiscard]] int rank() const noexcept { return comm_->rank(); }
  [[nodiscard]] int size() const noexcept { return comm_->size(); }
  Ticket start(zero::Collective const& op) {
    calls_.push_back(op);
    ++under_way_;
    return comm_->start(op);
  }
  void wait(Ticket& ticket) {
    comm_->wait(ticket);
    --under_way_;
  }

  [[nodiscard]] std::vector<zero::Collective> const& calls() const noexcept { return calls_; }
  /// Collectives that were started and not waited for.
  [[nodiscard]] int under_way() const noexcept { return under_way_; }
  void forget() noexcept { calls_.clear(); }

 private:
  C* comm_;
  std::vector<zero::Collective> calls_;
  int under_way_ = 0;
};

}  // namespace contracts
