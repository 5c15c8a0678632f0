/// @file
/// A collective under way, as its communicator's caller holds it.
#pragma once

#include "zero/base/config.hpp"

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Owns one rank's part of a collective: destroying it unfinished withdraws that part.
/// @tparam Group   has `wait(rank, number)` and `abandon(rank, number, unwinding)`; unwinding is
/// true
///   if an exception that was thrown since the start destroys the ticket
/// @tparam Number  by which the group finds the collective again
template <class Group, class Number = std::uint64_t>
class Ticket {
 public:
  Ticket() = default;
  Ticket(std::shared_ptr<Group> group, Number number, int rank) noexcept
      : group_(std::move(group)), call_{number, rank, std::uncaught_exceptions()} {}
  /// Takes over the collective; `other` has nothing left to wait for.
  Ticket(Ticket&& other) noexcept = default;
  /// Takes over the collective. One that this ticket still held is withdrawn as in destruction.
  Ticket& operator=(Ticket&& other) noexcept {
    Ticket taken(std::move(other));
    std::swap(group_, taken.group_);
    std::swap(call_, taken.call_);
    return *this;
  }
  ~Ticket() {
    if (group_ != nullptr) abandon();
  }

  /// Waits for the collective unless there is nothing left to wait for.
  void wait() {
    if (group_ != nullptr) group_->wait(call_.rank, call_.number);
    group_.reset();
  }

 private:
  // Out of line: tickets are moved and destroyed in many places, hardly ever unfinished.
  __attribute__((noinline)) void abandon() noexcept {
    group_->abandon(call_.rank, call_.number, std::uncaught_exceptions() > call_.exceptions);
    group_.reset();
  }

  struct StartedCall {
    Number number{};
    int rank = -1;
    int exceptions = 0;  ///< in flight at birth: more of them at death mean unwinding
  };

  std::shared_ptr<Group> group_;  ///< null when there is nothing left to wait for
  StartedCall call_{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
