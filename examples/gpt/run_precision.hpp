/// @file
/// The four stages of one precision; included by one source file per precision.
#pragma once

#include "placed_inputs.hpp"
#include "run.hpp"
#include "train.hpp"
#include "zero/comm/grid.hpp"
#include "zero/comm/self.hpp"

#include <stdexcept>

namespace gpt {

template <class Stage, class Precision, class Ranks, class Communicator, class World, class Memory>
void train_on(Ranks& ranks,
              Communicator const& data,
              ModelGroup const& group,
              BlockInputs<float>* inputs,
              Options const& options,
              Text const& text,
              Recorder<World>& recorder,
              Memory const& memory) {
  if (options.accumulate == 1) {
    train_rank<Stage, Precision, zero::AccumulateNone>(
        ranks, data, group, inputs, options, text, recorder, memory);
  } else {
    train_rank<Stage, Precision, zero::AccumulateShard>(
        ranks, data, group, inputs, options, text, recorder, memory);
  }
}

template <class Stage, class Precision, class World, class Memory>
StageResult run_stage(World& world,
                      Memory const& memory,
                      Options const& options,
                      Text const& text,
                      std::atomic<bool> const& stop_requested,
                      ShowProgress const& show) {
  zero::Counting<World> comm{world};
  if (options.model_parallel == 1) {
    Recorder<World> recorder(world, comm, options, stop_requested, show);
    zero::Self alone;
    auto const inputs = block_inputs(alone, options, memory, recorder);
    train_on<Stage, Precision>(
        comm, comm, ModelGroup(), inputs.get(), options, text, recorder, memory);
    return recorder.result();
  }
  zero::Grid grid{comm, options.models(), options.model_parallel};
  Recorder<World> recorder(world, grid.data(), options, stop_requested, show);
  ModelGroup const group(grid.model());
  auto const inputs = block_inputs(grid.model(), options, memory, recorder);
  train_on<Stage, Precision>(
      grid, grid.data(), group, inputs.get(), options, text, recorder, memory);
  return recorder.result();
}

template <class Precision, class World, class Memory>
StageResult run_precision(World& world,
                          Memory const& memory,
                          Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show) {
  using namespace zero::stage;
  if (options.stage == "replicated") {
    return run_stage<Replicated, Precision>(world, memory, options, text, stop_requested, show);
  }
  if (options.stage == "pos") {
    return run_stage<Pos, Precision>(world, memory, options, text, stop_requested, show);
  }
  if (options.stage == "pos+g") {
    return run_stage<PosG, Precision>(world, memory, options, text, stop_requested, show);
  }
  if (options.stage == "pos+g+p") {
    return run_stage<PosGP, Precision>(world, memory, options, text, stop_requested, show);
  }
  throw std::invalid_argument("unknown stage '" + options.stage + "'");
}

}  // namespace gpt
