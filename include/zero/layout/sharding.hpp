/// @file
/// Which model states are partitioned: the three booleans every stage boils down to.
#pragma once

#include "zero/base/config.hpp"

namespace zero::inline ZERO_NAMESPACE {

/// Model states of which a rank keeps only its 1/N share. Each level includes the one before.
struct Sharding {
  bool optimizer = false;   ///< master weights and optimizer states
  bool gradients = false;   ///< reduced gradients
  bool parameters = false;  ///< the parameters the forward pass reads

  /// True if each level includes the one before, as a stage's must.
  [[nodiscard]] constexpr bool nested() const noexcept {
    return (optimizer || !gradients) && (gradients || !parameters);
  }
  friend constexpr bool operator==(Sharding const&, Sharding const&) = default;
};

}  // namespace zero::inline ZERO_NAMESPACE
