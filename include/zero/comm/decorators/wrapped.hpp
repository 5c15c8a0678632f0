/// @file
/// What decorators have in common: a communicator, and all that they pass on as it is.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Refers to an lvalue and keeps an rvalue, so that a decorator can wrap a trainer's communicator
/// and can also return a decorated sub-group that nobody else owns. A decorator derives from it,
/// and has a `start` and a `split` of its own.
template <Communicator C>
class Wrapped {
 public:
  using Space = typename C::Space;    ///< where buffers live: as in `C`
  using Ticket = typename C::Ticket;  ///< a collective under way: the inner communicator's own
  /// As the inner communicator does.
  static constexpr bool adds_squares = SquaringCommunicator<C>;

  /// Refers to `borrowed`.
  explicit Wrapped(C& borrowed) noexcept : borrowed_(&borrowed) {}
  /// Keeps `owned`.
  explicit Wrapped(C&& owned) : owned_(std::move(owned)) {}

  /// This rank's number in the group, from 0.
  [[nodiscard]] int rank() const noexcept { return inner().rank(); }
  /// How many ranks the group has.
  [[nodiscard]] int size() const noexcept { return inner().size(); }
  /// The memory space of the inner communicator.
  [[nodiscard]] Space space() const { return space_of(inner()); }
  /// The inner communicator's.
  [[nodiscard]] std::string_view group_name() const { return detail::group_name(inner()); }

  /// Waits as the inner communicator does.
  void wait(Ticket& ticket) { inner().wait(ticket); }
  /// Advances what is under way, where the inner communicator needs that.
  void progress() noexcept requires ProgressingCommunicator<C> { inner().progress(); }
  /// As the inner communicator does.
  void confirm() requires ConfirmingCommunicator<C> { inner().confirm(); }
  /// The inner communicator's.
  [[nodiscard]] std::int64_t const* ended() const requires ConfirmingCommunicator<C> {
    return inner().ended();
  }
  /// The inner communicator's.
  [[nodiscard]] std::uint64_t held() const requires HoldingCommunicator<C> {
    return inner().held();
  }

 protected:
  /// The communicator that is decorated.
  [[nodiscard]] C& inner() noexcept { return owned_ ? *owned_ : *borrowed_; }
  /// @overload
  [[nodiscard]] C const& inner() const noexcept { return owned_ ? *owned_ : *borrowed_; }

 private:
  C* borrowed_ = nullptr;
  std::optional<C> owned_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
