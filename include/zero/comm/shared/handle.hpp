/// @file
/// What a rank's communicator holds of its group.
#pragma once

#include "zero/base/config.hpp"

#include <exception>
#include <memory>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// One rank in a group, which it leaves when it is destroyed or assigned to.
/// @tparam Group  has `size()` and `leave(rank, unwinding)`; unwinding is true if an exception that
///   was thrown since this object was made destroys it
template <class Group>
class Handle {
 public:
  Handle(std::shared_ptr<Group> group, int rank) noexcept
      : group_(std::move(group)), rank_(rank), size_(group_->size()) {}
  /// Takes over the rank; `other` has no group any more.
  Handle(Handle&& other) noexcept
      : group_(std::move(other.group_)), rank_(other.rank_), size_(other.size_) {}
  /// Leaves the present group, then takes over the rank.
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      leave();
      group_ = std::move(other.group_);
      rank_ = other.rank_;
      size_ = other.size_;
      exceptions_ = std::uncaught_exceptions();
    }
    return *this;
  }
  ~Handle() { leave(); }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Null after a move or `forget`.
  [[nodiscard]] std::shared_ptr<Group> const& group() const noexcept { return group_; }
  Group* operator->() const noexcept { return group_.get(); }
  /// The group has been ended in another way.
  void forget() noexcept { group_.reset(); }

 private:
  void leave() noexcept {
    if (group_ == nullptr) return;
    group_->leave(rank_, std::uncaught_exceptions() > exceptions_);
    group_.reset();
  }

  std::shared_ptr<Group> group_;
  int rank_;
  int size_;
  int exceptions_ = std::uncaught_exceptions();  ///< in flight at birth: more at death unwind
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
