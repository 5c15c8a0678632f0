/// @file
/// The four stages of one precision; included by one source file per precision.
#pragma once

#include "run.hpp"
#include "train.hpp"

#include <optional>
#include <stdexcept>

namespace gpt {

template <class Stage, class Precision, class World, class Memory>
StageResult run_stage(World& world,
                      Memory const& memory,
                      Options const& options,
                      Text const& text,
                      std::atomic<bool> const& stop_requested,
                      ShowProgress const& show) {
  // Ranks are a grid: those that hold a model together follow each other.
  std::optional<World> model;
  std::optional<World> peers;
  if (options.model_parallel > 1) {
    model.emplace(world.split(world.rank() / options.model_parallel, world.rank()));
    peers.emplace(world.split(world.rank() % options.model_parallel, world.rank()));
  }
  ModelGroup const group = model ? ModelGroup(*model) : ModelGroup();
  zero::Counting<World> comm{peers ? *peers : world};
  Recorder<World> recorder(world, comm, options, stop_requested, show);
  if (options.accumulate == 1) {
    train_rank<Stage, Precision, zero::AccumulateNone>(
        comm, group, options, text, recorder, memory);
  } else {
    train_rank<Stage, Precision, zero::AccumulateShard>(
        comm, group, options, text, recorder, memory);
  }
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
  if (options.stage == "none") {
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
