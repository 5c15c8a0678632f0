/// @file
/// A decorator that lets a test see every collective before it starts.
#pragma once

#include "zero/comm/decorators/wrapped.hpp"
#include "zero/concepts/communicator.hpp"

#include <string_view>
#include <utility>

namespace faults {

/// Calls `meet(group name, collective)`, which may change it or throw, and passes it on; so do
/// groups that are split from it.
template <class C, class Meet>
class Faulty {
 public:
  using Space = typename C::Space;
  using Ticket = typename C::Ticket;

  Faulty(C& comm, Meet& meet) : comm_(comm), meet_(&meet) {}
  [[nodiscard]] int rank() const noexcept { return comm_.get().rank(); }
  [[nodiscard]] int size() const noexcept { return comm_.get().size(); }
  Ticket start(zero::Collective op) {
    (*meet_)(group_name(), op);
    return comm_.get().start(op);
  }
  void wait(Ticket& ticket) { comm_.get().wait(ticket); }
  void progress() noexcept requires zero::ProgressingCommunicator<C> { comm_.get().progress(); }
  [[nodiscard]] Faulty split(int color, int key, std::string_view name = {}) {
    return Faulty(zero::detail::split(comm_.get(), color, key, name), meet_);
  }
  [[nodiscard]] std::string_view group_name() const {
    return zero::detail::group_name(comm_.get());
  }

 private:
  Faulty(C&& comm, Meet* meet) : comm_(std::move(comm)), meet_(meet) {}

  zero::detail::Wrapped<C> comm_;
  Meet* meet_;
};

}  // namespace faults
