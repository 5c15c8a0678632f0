/// @file
/// Communicators that can be asked what went through them.
#pragma once

#include "zero/zero.hpp"

#include <algorithm>
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
    most_under_way_ = std::max(most_under_way_, ++under_way_);
    return comm_->start(op);
  }
  void wait(Ticket& ticket) {
    comm_->wait(ticket);
    --under_way_;
  }

  [[nodiscard]] std::vector<zero::Collective> const& calls() const noexcept { return calls_; }
  /// Collectives that were started and not waited for.
  [[nodiscard]] int under_way() const noexcept { return under_way_; }
  /// The most that were at once since the last `forget`.
  [[nodiscard]] int most_under_way() const noexcept { return most_under_way_; }
  void forget() noexcept {
    calls_.clear();
    most_under_way_ = under_way_;
  }

 private:
  C* comm_;
  std::vector<zero::Collective> calls_;
  int under_way_ = 0;
  int most_under_way_ = 0;
};

/// All of the library's decorators over a rank's thread, and the recording: every contract test
/// that asks a communicator something asks this one, so that one type of each optimizer serves them
/// all.
struct Watched {
  explicit Watched(zero::InProcess& inner)
      : checked(inner), traced(checked), counted(traced), comm(counted) {}
  Watched(Watched const&) = delete;
  Watched& operator=(Watched const&) = delete;

  zero::Checked<zero::InProcess> checked;
  zero::Traced<zero::Checked<zero::InProcess>> traced;
  zero::Counting<zero::Traced<zero::Checked<zero::InProcess>>> counted;
  Recording<zero::Counting<zero::Traced<zero::Checked<zero::InProcess>>>> comm;
};

template <class... Policies>
using WatchedOptimizer = zero::ShardedOptimizer<decltype(Watched::comm), Policies...>;

}  // namespace contracts
