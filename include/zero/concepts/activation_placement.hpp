/// @file
/// The placement slot: where activation checkpoints are kept between forward and backward pass.
#pragma once

#include "zero/base/config.hpp"

#include <concepts>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE {

/// A placement is stateless data: a name, whether a rank keeps only its share of a checkpoint, and
/// whether it keeps that in the slower memory. What is in the slower memory is partitioned, too.
template <class P>
concept ActivationPlacement = std::is_empty_v<P> && requires {
  { P::name } -> std::convertible_to<std::string_view>;
  { P::partitioned } -> std::convertible_to<bool>;
  { P::offloaded } -> std::convertible_to<bool>;
  requires P::partitioned || !P::offloaded;
};

namespace activation {

/// Every rank keeps whole checkpoints: plain checkpointing, the baseline.
struct Whole {
  static constexpr std::string_view name = "whole";  ///< as plans show it
  static constexpr bool partitioned = false;         ///< nothing is gathered
  static constexpr bool offloaded = false;           ///< in the space of the communicator
};

/// A rank keeps its share; an all-gather brings a checkpoint together (§6.1).
struct Pa {
  static constexpr std::string_view name = "Pa";  ///< as plans show it
  static constexpr bool partitioned = true;       ///< gathered when it is fetched
  static constexpr bool offloaded = false;        ///< in the space of the communicator
};

/// A rank keeps its share in the slower memory (§6.1).
struct PaCpu {
  static constexpr std::string_view name = "Pa+cpu";  ///< as plans show it
  static constexpr bool partitioned = true;           ///< gathered when it is fetched
  static constexpr bool offloaded = true;             ///< in the slower memory
};

}  // namespace activation

static_assert(ActivationPlacement<activation::Whole>);
static_assert(ActivationPlacement<activation::Pa>);
static_assert(ActivationPlacement<activation::PaCpu>);

/// Micro-batches whose checkpoints are held at once. A pipeline of P stages with one forward and
/// one backward pass in turn (1F1B) has P - p of them under way on its stage p.
struct MicroBatches {
  int in_flight = 1;  ///< at least 1
  friend constexpr bool operator==(MicroBatches const&, MicroBatches const&) = default;
};

}  // namespace zero::inline ZERO_NAMESPACE
