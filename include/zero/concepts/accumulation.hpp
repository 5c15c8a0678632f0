/// @file
/// The accumulation slot: where the gradients of several micro-batches are added up.
#pragma once

#include "zero/base/config.hpp"

#include <concepts>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

/// Where micro-batches meet. Stateless data, like a stage.
template <class A>
concept Accumulation = std::is_empty_v<A> && requires {
  { A::name } -> std::convertible_to<std::string_view>;
  { A::full_gradients } -> std::convertible_to<bool>;
  { A::reduced_shard } -> std::convertible_to<bool>;
  requires !(A::full_gradients && A::reduced_shard);
};

/// One micro-batch a step (the default): a unit's gradients are complete when it is reduced.
struct AccumulateNone {
  static constexpr std::string_view name = "none";  ///< as plans and fingerprints show it
  static constexpr bool full_gradients = false;     ///< nothing adds up, so nothing is kept for it
  static constexpr bool reduced_shard = false;      ///< the share is received as it is
};

/// Micro-batches add into full gradients on every rank, which travel once a step: the traffic of
/// one micro-batch, for 1/1 of the gradients in memory whatever the stage.
struct AccumulateFull {
  static constexpr std::string_view name = "full";  ///< as plans and fingerprints show it
  static constexpr bool full_gradients = true;      ///< kept on every rank, whatever the stage
  static constexpr bool reduced_shard = false;      ///< micro-batches meet before the reduction
};

/// Every micro-batch is reduced at once and added to the owned shard in the accumulate dtype: 1/N
/// of the memory, for the traffic of a reduction every micro-step.
struct AccumulateShard {
  static constexpr std::string_view name = "shard";  ///< as plans and fingerprints show it
  static constexpr bool full_gradients = false;  ///< one micro-batch at a time, as the stage says
  static constexpr bool reduced_shard = true;    ///< reduced gradients add up in the owned shard
};

static_assert(Accumulation<AccumulateNone>);
static_assert(Accumulation<AccumulateFull>);
static_assert(Accumulation<AccumulateShard>);

}  // namespace zero::inline ZERO_NAMESPACE
