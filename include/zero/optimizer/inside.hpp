/// @file
/// The way into an optimizer for the optional parts above it.
#pragma once

#include "zero/base/config.hpp"

namespace zero::inline ZERO_NAMESPACE::detail {

/// What a checkpoint needs of an optimizer and a trainer does not: where its arrays lie.
struct Inside {
  /// Stores and stations: an `Assembly`.
  template <class Optimizer>
  [[nodiscard]] static auto& parts(Optimizer& optimizer) noexcept {
    return optimizer.parts_;
  }
  /// The way through a step: a `Stepper`.
  template <class Optimizer>
  [[nodiscard]] static auto& steps(Optimizer& optimizer) noexcept {
    return optimizer.steps_;
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
