/// @file
/// How long memory is used: what decides at which end of a reservation it lies.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/memory_plan.hpp"

#include <cstdint>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE {

/// How long a block of memory is used. Blocks of both kinds side by side are what fragments memory.
/// @par Source  ZeRO §6.3
enum class Lifetime : std::uint8_t {
  long_lived,   ///< from forward to backward or longer: checkpoints, gradients, model states
  short_lived,  ///< within the work on a layer: activations, their gradients, gathered parameters
};

/// Number of lifetimes.
inline constexpr int lifetime_count = 2;

/// What texts and errors call the lifetime.
[[nodiscard]] constexpr std::string_view name(Lifetime lifetime) noexcept {
  return lifetime == Lifetime::long_lived ? "long-lived" : "short-lived";
}

/// The lifetime of what a role holds: pools and staging are filled and emptied bucket by bucket,
/// unit by unit, beside the trainer's activations; all else stays.
[[nodiscard]] constexpr Lifetime lifetime_of(Role role) noexcept {
  switch (role) {
    case Role::gradient_pool:
    case Role::gather_pool:
    case Role::staging:
    case Role::activation_pool:
    case Role::activation_staging: return Lifetime::short_lived;
    case Role::parameters:
    case Role::gradients:
    case Role::master:
    case Role::state:
    case Role::control:
    case Role::communicator:
    case Role::activations: return Lifetime::long_lived;
  }
  return Lifetime::long_lived;
}

}  // namespace zero::inline ZERO_NAMESPACE
