/// @file
/// The stage slot: which model states a rank keeps only its share of.
#pragma once

#include "zero/base/config.hpp"
#include "zero/layout/sharding.hpp"

#include <concepts>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

/// A stage is stateless data: a name and what it shards. The algorithm reads it; it never runs.
///
/// An own stage is a struct with these two constants; nothing in the library has to change.
template <class S>
concept Stage = std::is_empty_v<S> && requires {
  { S::name } -> std::convertible_to<std::string_view>;
  { S::sharding } -> std::convertible_to<Sharding>;
  requires S::sharding.nested();
};

namespace stage {

/// Plain data parallelism: every rank holds everything. The baseline.
struct Replicated {
  static constexpr std::string_view name = "replicated";  ///< as plans and fingerprints show it
  static constexpr Sharding sharding{};                   ///< nothing is partitioned
};

/// Optimizer states partitioned (ZeRO stage 1, §5.1).
struct Pos {
  static constexpr std::string_view name = "Pos";  ///< as plans and fingerprints show it
  /// Master weights and optimizer states are partitioned.
  static constexpr Sharding sharding{.optimizer = true};
};

/// Optimizer states and gradients partitioned (ZeRO stage 2, §5.2).
struct PosG {
  static constexpr std::string_view name = "Pos+g";  ///< as plans and fingerprints show it
  /// Master weights, optimizer states and reduced gradients are partitioned.
  static constexpr Sharding sharding{.optimizer = true, .gradients = true};
};

/// Optimizer states, gradients and parameters partitioned (ZeRO stage 3, §5.3).
struct PosGP {
  static constexpr std::string_view name = "Pos+g+p";  ///< as plans and fingerprints show it
  /// All model states are partitioned.
  static constexpr Sharding sharding{.optimizer = true, .gradients = true, .parameters = true};
};

}  // namespace stage

static_assert(Stage<stage::Replicated>);
static_assert(Stage<stage::Pos>);
static_assert(Stage<stage::PosG>);
static_assert(Stage<stage::PosGP>);

}  // namespace zero::inline ZERO_NAMESPACE
