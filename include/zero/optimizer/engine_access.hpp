/// @file
/// The way into an optimizer for the optional parts above it.
#pragma once

#include "zero/base/config.hpp"

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a checkpoint needs of an optimizer and a trainer does not.
struct EngineAccess {
  /// Its `Engine`, also through an adapter, which has an optimizer as its `core()`.
  template <class Optimizer>
  [[nodiscard]] static auto& engine(Optimizer& optimizer) noexcept {
    if constexpr (requires { optimizer.core(); }) {
      return engine(optimizer.core());
    } else {
      return optimizer.engine_;
    }
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
