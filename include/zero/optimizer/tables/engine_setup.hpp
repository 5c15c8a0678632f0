/// @file
/// All that an engine is made from: policies as values, and tables for what only types can do.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/bucket.hpp"
#include "zero/concepts/overflow.hpp"
#include "zero/concepts/prefetch.hpp"
#include "zero/concepts/seed.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/layout/sharding.hpp"
#include "zero/layout/storage_types.hpp"
#include "zero/optimizer/step/decision.hpp"
#include "zero/optimizer/tables/communicator_calls.hpp"
#include "zero/optimizer/tables/kernel_calls.hpp"
#include "zero/optimizer/tables/rule_calls.hpp"
#include "zero/optimizer/tables/space_calls.hpp"
#include "zero/precision/loss_scale.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace zero::inline ZERO_NAMESPACE::detail {

/// What the policies in use decide.
struct PolicyFacts {
  std::string_view stage{};
  std::string_view precision{};
  std::string_view accumulation{};
  Sharding sharding{};
  bool full_gradients = false;  ///< micro-steps add up in full gradients
  bool reduced_shard = false;   ///< micro-steps add up in the reduced share
  bool borrowed = false;        ///< the trainer lends parameters and gradients
  bool in_place = false;        ///< reduced gradients lie in lent ones
  bool loss_scaled = false;
  /// Of precisions, the first for tensors that say nothing: at least one. Refers to constants.
  std::span<StorageTypes const> types{};
  DType state = DType::f32;  ///< of a rule's states, if it has any
  bool measures = false;     ///< a rule that measures whole tensors

  /// Does a step round anything stochastically?
  [[nodiscard]] constexpr bool random() const noexcept {
    bool any = false;
    for (StorageTypes const& each : types) any = any || each.random();
    return any;
  }
  [[nodiscard]] constexpr StorageChoice choice(int prefetch,
                                               std::uint64_t communicator_bytes) const noexcept {
    return {.sharding = sharding,
            .full_gradients = full_gradients,
            .reduced_shard = reduced_shard,
            .borrowed = borrowed,
            .prefetch = prefetch,
            .control_bytes = sizeof(StepControl) + (random() ? sizeof(Seed) : 0),
            .control_bytes_each = TensorCounts::bytes_each,
            .communicator_bytes = communicator_bytes,
            .in_place = in_place,
            .norm_words = measures ? TensorCounts::norm_words : 0};
  }
  /// What messages and checkpoints call the memory policy.
  [[nodiscard]] constexpr std::string_view memory() const noexcept {
    return in_place ? "in place" : borrowed ? "borrowed" : "owned";
  }
  /// How each model state is held: what parts ask instead of the stage.
  [[nodiscard]] constexpr StorageForm form() const noexcept { return storage_form(choice(0, 0)); }
};

/// What a façade hands over. Tables are constants; what they are called with outlives the engine.
struct EngineSetup {
  PolicyFacts policies{};
  CommunicatorRef comm{};   ///< over which model states are partitioned: the data axis of a grid
  CommunicatorRef world{};  ///< that decides what a step does: all ranks of a grid, else as `comm`
  CommunicatorRef model{};  ///< the model axis of a grid; without one all null
  SpaceCalls const* space_calls = nullptr;
  void const* space = nullptr;
  KernelCalls const* const* kernels = nullptr;  ///< of each of the policies' types
  RuleCalls const* rule_calls = nullptr;
  void const* rule = nullptr;  ///< copied
  AllocatorRef allocator{};
  LossScaleOptions const* loss_scale = nullptr;  ///< null where nothing is scaled
  Bucket bucket{};
  Prefetch prefetch{};
  Overflow overflow{};
  Seed seed{};
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
