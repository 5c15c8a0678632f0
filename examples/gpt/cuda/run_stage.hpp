/// @file
/// A run under one stage, where a device computes: one source file per precision and communicator
/// includes it.
#pragma once

#include "device_gpt.hpp"
#include "run_precision.hpp"
#include "world.hpp"

#include <memory_resource>

namespace gpt {

template <class Stage, class Precision, class Rule, class World, class Memory>
  requires(!World::Space::host_accessible)
StageResult run_stage(World& world,
                      Memory const& memory,
                      Options const& options,
                      Text const& text,
                      std::atomic<bool> const& stop_requested,
                      ShowProgress const& show) {
  void* word = nullptr;
  Workspace words(memory.allocator);
  DeviceArrays const own([&](DeviceArrays& arrays) { word = arrays.array<double>(1); }, &words);
  zero::Counting<World> comm{world};
  Recorder<World> recorder(world, comm, options, stop_requested, show, word);
  auto const network = [&](std::pmr::memory_resource* activations) {
    return DeviceGpt<typename Precision::Parameter>(
        options.model, options.batch, world.space(), activations);
  };
  train_on<Stage, Precision, Rule>(
      comm, comm, ModelRank(), network, options, text, recorder, memory);
  return recorder.result();
}

}  // namespace gpt
