/// @file
/// A function to call while its caller waits, without a template for each.
#pragma once

#include "zero/base/config.hpp"

#include <concepts>

namespace zero::inline ZERO_NAMESPACE::detail {

template <class Signature>
class FunctionRef;

/// Refers to something callable that outlives it; owns nothing. What takes one is compiled once,
/// not once for each lambda of a trainer.
template <class... Arguments>
class FunctionRef<void(Arguments...)> {
 public:
  // A copy refers to the function, not to what it was copied from.
  template <class F>
  explicit FunctionRef(F& function) noexcept requires(!std::same_as<F, FunctionRef>)
      : function_(&function), call_([](void const* f, Arguments... arguments) {
          static_cast<void>(
              (*static_cast<F*>(const_cast<void*>(f)))(static_cast<Arguments>(arguments)...));
        }) {}

  void operator()(Arguments... arguments) const {
    call_(function_, static_cast<Arguments>(arguments)...);
  }

 private:
  void const* function_;
  void (*call_)(void const*, Arguments...);
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
