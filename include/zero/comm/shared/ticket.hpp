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
      : group_(std::move(group)),
        number_(number),
        rank_(rank),
        exceptions_(std::uncaught_exceptions()) {}
  /// Takes over the collective; `other` has nothing left to wait for.
  Ticket(Ticket&& other) noexcept
      : group_(std::move(other.group_)),
        number_(other.number_),
        rank_(other.rank_),
        exceptions_(other.exceptions_) {}
  /// Takes over the collective. One that this ticket still held is withdrawn as in destruction.
  Ticket& operator=(Ticket&& other) noexcept {
    if (this != &other) {
      if (group_ != nullptr) abandon();
      group_ = std::move(other.group_);
      number_ = other.number_;
      rank_ = other.rank_;
      exceptions_ = other.exceptions_;
    }
    return *this;
  }
  ~Ticket() {
    if (group_ != nullptr) abandon();
  }

  /// Waits for the collective unless there is nothing left to wait for.
  void wait() {
    if (group_ == nullptr) return;
    group_->wait(rank_, number_);
    group_.reset();
  }

 private:
  // Out of line: tickets are moved and destroyed in many places, hardly ever unfinished.
  __attribute__((noinline)) void abandon() noexcept {
    group_->abandon(rank_, number_, std::uncaught_exceptions() > exceptions_);
    group_.reset();
  }

  std::shared_ptr<Group> group_;  ///< null when there is nothing left to wait for
  Number number_{};
  int rank_ = -1;
  int exceptions_ = 0;  ///< exceptions in flight at birth: more of them at death mean unwinding
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
