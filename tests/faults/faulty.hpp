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
class Faulty : public zero::detail::Wrapped<C> {
 public:
  /// A changed collective may have no room for squares.
  static constexpr bool adds_squares = false;

  Faulty(C& comm, Meet& meet) : zero::detail::Wrapped<C>(comm), meet_(&meet) {}
  typename C::Ticket start(zero::Collective op) {
    (*meet_)(this->group_name(), op);
    return this->inner().start(op);
  }
  [[nodiscard]] Faulty split(int color, int key, std::string_view name = {}) {
    return Faulty(zero::detail::split(this->inner(), color, key, name), meet_);
  }

 private:
  Faulty(C&& comm, Meet* meet) : zero::detail::Wrapped<C>(std::move(comm)), meet_(meet) {}

  Meet* meet_;
};

}  // namespace faults
