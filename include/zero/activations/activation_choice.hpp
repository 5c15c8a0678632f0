/// @file
/// From a list of policies to one policy per slot, with a sentence for each mistake.
#pragma once

#include "zero/activations/activation_plan.hpp"
#include "zero/activations/activation_store.hpp"
#include "zero/base/config.hpp"
#include "zero/concepts/activation_placement.hpp"
#include "zero/concepts/policies.hpp"
#include "zero/concepts/transfer.hpp"

#include <concepts>
#include <memory>
#include <string_view>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

template <class T>
struct FitsPlacement : std::bool_constant<ActivationPlacement<T>> {};
template <class T>
struct FitsTransfer : std::bool_constant<Transfer<T>> {};
template <class T>
struct FitsMicroBatches : std::is_same<T, MicroBatches> {};

template <class T>
inline constexpr int activation_slots_of =
    int{FitsCommunicator<T>::value} + int{FitsPlacement<T>::value} + int{FitsTransfer<T>::value} +
    int{FitsMemory<T>::value} + int{FitsMicroBatches<T>::value} + int{FitsPrefetch<T>::value};

/// The choice that a list of policies makes, defaults filled in.
template <class... Policies>
struct ActivationChoice {
  static_assert(((activation_slots_of<Policies> == 1) && ...),
                "zero: a policy of activations models no slot, or more than one (communicator, "
                "placement, transfer, memory, micro-batches, prefetch)");
  static_assert(named<FitsCommunicator, Policies...> == 1,
                "zero: exactly one communicator must be named");
  static_assert(named<FitsPlacement, Policies...> <= 1, "zero: two placements are named");
  static_assert(named<FitsTransfer, Policies...> <= 1, "zero: two transfers are named");
  static_assert(named<FitsMemory, Policies...> <= 1, "zero: two memory policies are named");
  static_assert(named<FitsMicroBatches, Policies...> <= 1, "zero: two micro-batches are named");
  static_assert(named<FitsPrefetch, Policies...> <= 1, "zero: two prefetches are named");

  using Communicator = Selected<FitsCommunicator, void, Policies...>;
  using Placement = Selected<FitsPlacement, activation::Pa, Policies...>;
  using Memory = Selected<FitsMemory, Owned<>, Policies...>;
  static_assert(!Memory::borrowed, "zero: activations own their memory: Owned<>");
  static_assert(named<FitsMemory, Policies...> == 1 || Communicator::Space::host_accessible,
                "zero: name an allocator of device memory: Owned{...}");
  static_assert(named<FitsTransfer, Policies...> == 1 || !Placement::offloaded,
                "zero: a placement in the slower memory needs a transfer");
  /// Unused, and not asked for, where everything is placed in the communicator's space.
  using Transfer =
      std::conditional_t<Placement::offloaded, Selected<FitsTransfer, void, Policies...>, void>;

  template <class T>
  static constexpr bool is_value =
      std::same_as<T, Placement> || std::same_as<T, Memory> || std::same_as<T, MicroBatches> ||
      std::same_as<T, Prefetch> || FitsTransfer<T>::value;

  /// The value of type T among the arguments, or a default one.
  template <class T>
  static T pick() {
    return T{};
  }
  template <class T, class First, class... Rest>
  static T pick(First const& first, Rest const&... rest) {
    static_assert(is_value<First>, "zero: a value's type is none of the activations' policies");
    if constexpr (std::same_as<T, First>) {
      return first;
    } else {
      return pick<T>(rest...);
    }
  }

  /// The transfer among the arguments; null where none is needed.
  static Transfer* transfer() {
    static_assert(!Placement::offloaded, "zero: a placement in the slower memory needs a transfer");
    return nullptr;
  }
  template <class First, class... Rest>
  static Transfer* transfer(First& first, Rest&... rest) {
    if constexpr (std::same_as<Transfer, First>) {
      return &first;
    } else {
      return transfer(rest...);
    }
  }

  /// Slower memory from the transfer; null where everything is placed in the communicator's space.
  static std::unique_ptr<SlowerMemory> slower([[maybe_unused]] Transfer* transfer,
                                              [[maybe_unused]] ActivationSizes const& sizes) {
    if constexpr (Placement::offloaded) {
      return std::make_unique<SlowerMemoryOf<Transfer>>(
          *transfer, sizes.stored, sizes.send_slots + sizes.arrival_slots);
    } else {
      return nullptr;
    }
  }

  /// What the slower memory calls itself.
  static constexpr std::string_view slower_memory() {
    if constexpr (Placement::offloaded) {
      return Transfer::name;
    } else {
      return {};
    }
  }
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
