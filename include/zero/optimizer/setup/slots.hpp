/// @file
/// The chosen policies as one type, and what follows from them.
#pragma once

#include "zero/base/config.hpp"
#include "zero/concepts/accumulation.hpp"
#include "zero/concepts/communicator.hpp"
#include "zero/concepts/memory.hpp"
#include "zero/concepts/precision.hpp"
#include "zero/concepts/rule.hpp"
#include "zero/concepts/stage.hpp"
#include "zero/layout/memory_plan.hpp"
#include "zero/optimizer/stations/control.hpp"

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace zero::inline ZERO_NAMESPACE::detail {

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

  /// How each model state is held: what stations ask instead of the stage.
  using Form = StorageForm;
  static constexpr Form form = storage_form({.sharding = Stage::sharding,
                                             .full_gradients = Accumulation::full_gradients,
                                             .reduced_shard = Accumulation::reduced_shard,
                                             .borrowed = Memory::borrowed});

  static constexpr bool has_master = zero::has_master<Precision>;
  static constexpr std::size_t state_arrays = Rule::states.size();

  static constexpr ElementBytes element_bytes{
      .parameter = sizeof(Parameter),
      .wire = sizeof(Wire),
      .accumulate = sizeof(Accumulate),
      .master = has_master ? sizeof(Master) : 0,
      .state = sizeof(State),
      .state_arrays = state_arrays,
  };

  [[nodiscard]] static constexpr StorageChoice storage_choice(
      int prefetch, std::uint64_t communicator_bytes) noexcept {
    return {.sharding = Stage::sharding,
            .bytes = element_bytes,
            .full_gradients = Accumulation::full_gradients,
            .reduced_shard = Accumulation::reduced_shard,
            .borrowed = Memory::borrowed,
            .prefetch = prefetch,
            .control_bytes = sizeof(StepControl),
            .control_bytes_of_three = TensorCounts::bytes_of_three,
            .communicator_bytes = communicator_bytes};
  }

  /// Type of a reduced gradient.
  using Gradient = std::conditional_t<form.reduced == Form::Reduced::sums, Accumulate, Wire>;
};

}  // namespace zero::inline ZERO_NAMESPACE::detail
