/// @file
/// What a decorator holds: a communicator that belongs to someone else, or one of its own.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/communicator.hpp"

#include <optional>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::detail {

/// Refers to an lvalue and keeps an rvalue, so that a decorator can wrap a trainer's communicator
/// and can also return a decorated sub-group that nobody else owns.
template <Communicator C>
class Wrapped {
 public:
  explicit Wrapped(C& borrowed) noexcept : borrowed_(&borrowed) {}
  explicit Wrapped(C&& owned) : owned_(std::move(owned)) {}

  [[nodiscard]] C& get() noexcept { return owned_ ? *owned_ : *borrowed_; }
  [[nodiscard]] C const& get() const noexcept { return owned_ ? *owned_ : *borrowed_; }

 private:
  C* borrowed_ = nullptr;
  std::optional<C> owned_;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
