/// @file
/// The chosen policies as one type, and what follows from them.
#pragma once

#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/stage.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/control.hpp"

#include <concepts>
#include <type_traits>

namespace zero::inline v0_1::detail {

/// One policy per slot. The parts of the optimizer take this instead of six parameters; the few
/// decisions that follow from a stage are derived here, in one place.
template <Stage StageT,
          Communicator CommunicatorT,
          Precision PrecisionT,
          Rule RuleT,
          Accumulation AccumulationT,
          Memory MemoryT>
struct Slots {
  using Stage = StageT;
  using Communicator = CommunicatorT;
  using Precision = PrecisionT;
  using Rule = RuleT;
  using Accumulation = AccumulationT;
  using Memory = MemoryT;
  using Space = typename Communicator::Space;
  using Parameter = typename Precision::Parameter;
  using Wire = typename Precision::Wire;
  using Accumulate = typename Precision::Accumulate;
  using Master = typename Precision::Master;
  using State = typename Precision::State;

  static constexpr Sharding sharding = Stage::sharding;
  static constexpr bool borrowed = Memory::borrowed;
  static constexpr bool reduced_shard = Accumulation::reduced_shard;
  static constexpr bool full_gradients = Accumulation::full_gradients;
  static constexpr bool has_master = zero::has_master<Precision>;
  static constexpr int state_arrays = Rule::state_count;

  /// Are full gradients of the whole model held by the library?
  static constexpr bool keeps_full_gradients = !borrowed && (!sharding.gradients || full_gradients);
  /// Do full gradients live in a pool, one unit at a time?
  static constexpr bool pools_gradients = !borrowed && !keeps_full_gradients;

  /// Type of a reduced gradient.
  using Gradient = std::conditional_t<reduced_shard, Accumulate, Wire>;

  static constexpr ElementBytes element_bytes{
      .parameter = sizeof(Parameter),
      .wire = sizeof(Wire),
      .accumulate = sizeof(Accumulate),
      .master = has_master ? sizeof(Master) : 0,
      .state = sizeof(State),
      .state_arrays = state_arrays,
  };

  [[nodiscard]] static constexpr StorageChoice storage_choice(int prefetch) noexcept {
    return {.sharding = sharding,
            .bytes = element_bytes,
            .full_gradients = full_gradients,
            .reduced_shard = reduced_shard,
            .borrowed = borrowed,
            .prefetch = prefetch,
            .control_bytes = sizeof(StepControl)};
  }
};

}  // namespace zero::inline v0_1::detail
