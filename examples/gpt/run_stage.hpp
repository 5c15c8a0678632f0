/// @file
/// A run under one stage, where the host computes: one source file per precision and rule includes
/// it.
#pragma once

#include "placed_inputs.hpp"
#include "run_precision.hpp"
#include "zero/comm/grid.hpp"
#include "zero/comm/self.hpp"

#include <memory_resource>

namespace gpt {

template <class Stage, class Precision, class Rule, class World, class Memory>
  requires(World::Space::host_accessible)
StageResult run_stage(World& world,
                      Memory const& memory,
                      Options const& options,
                      Text const& text,
                      std::atomic<bool> const& stop_requested,
                      ShowProgress const& show) {
  zero::Counting<World> comm{world};
  auto const network = [&](ModelGroup const& group, BlockInputs<float>* inputs) {
    return [&options, group, inputs](std::pmr::memory_resource* activations) {
      return Gpt<>(options.model, options.batch, group, inputs, activations);
    };
  };
  if (options.model_parallel == 1) {
    Recorder<World> recorder(world, comm, options, stop_requested, show);
    zero::Self alone;
    auto const inputs = block_inputs(alone, options, memory, recorder);
    train_on<Stage, Precision, Rule>(comm,
                                     comm,
                                     ModelRank(),
                                     network(ModelGroup(), inputs.get()),
                                     options,
                                     text,
                                     recorder,
                                     memory);
    return recorder.result();
  }
  zero::Grid grid{comm, options.models(), options.model_parallel};
  Recorder<World> recorder(world, grid.data(), options, stop_requested, show);
  ModelGroup const group(grid.model());
  auto const inputs = block_inputs(grid.model(), options, memory, recorder);
  train_on<Stage, Precision, Rule>(grid,
                                   grid.data(),
                                   group.place(),
                                   network(group, inputs.get()),
                                   options,
                                   text,
                                   recorder,
                                   memory);
  return recorder.result();
}

}  // namespace gpt
