/// @file
/// The four stages of one precision; included by one source file per precision, with what runs a
/// stage where its ranks are: run_stage.hpp, or cuda/run_stage.hpp.
#pragma once

#include "run.hpp"
#include "train.hpp"

#include <stdexcept>

namespace gpt {

template <class Stage,
          class Precision,
          class Rule,
          class Ranks,
          class Communicator,
          class MakeNetwork,
          class World,
          class Memory>
void train_on(Ranks& ranks,
              Communicator const& data,
              ModelRank const& place,
              MakeNetwork const& make_network,
              Options const& options,
              Text const& text,
              Recorder<World>& recorder,
              Memory const& memory) {
  if (options.accumulate == 1 || !accumulates<Precision, Rule>) {
    train_rank<Stage, Precision, Rule, zero::AccumulateNone>(
        ranks, data, place, make_network, options, text, recorder, memory);
  } else if constexpr (accumulates<Precision, Rule>) {
    train_rank<Stage, Precision, Rule, zero::AccumulateShard>(
        ranks, data, place, make_network, options, text, recorder, memory);
  }
}

template <class Precision, class Rule, class World, class Memory>
StageResult run_precision(World& world,
                          Memory const& memory,
                          Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show) {
  using namespace zero::stage;
  if (options.stage == "replicated") {
    return run_stage<Replicated, Precision, Rule>(
        world, memory, options, text, stop_requested, show);
  }
  if (options.stage == "pos") {
    return run_stage<Pos, Precision, Rule>(world, memory, options, text, stop_requested, show);
  }
  if (options.stage == "pos+g") {
    return run_stage<PosG, Precision, Rule>(world, memory, options, text, stop_requested, show);
  }
  if (options.stage == "pos+g+p") {
    return run_stage<PosGP, Precision, Rule>(world, memory, options, text, stop_requested, show);
  }
  throw std::invalid_argument("unknown stage '" + options.stage + "'");
}

}  // namespace gpt
