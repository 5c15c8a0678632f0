/// @file
/// The four stages of one precision; included by one source file per precision.
#pragma once

#include "run.hpp"
#include "train.hpp"

#include <stdexcept>

namespace gpt {

template <class Stage, class Precision>
StageResult run_stage(Options const& options,
                      Text const& text,
                      std::atomic<bool> const& stop_requested,
                      ShowProgress const& show) {
  StageResult result;
  zero::run_ranks(options.ranks, [&](zero::InProcess& world) {
    zero::Counting<zero::InProcess> comm{world};
    Recorder recorder(world, comm, options, stop_requested, show);
    if (options.accumulate == 1) {
      train_rank<Stage, Precision, zero::AccumulateNone>(comm, options, text, recorder);
    } else {
      train_rank<Stage, Precision, zero::AccumulateShard>(comm, options, text, recorder);
    }
    if (world.rank() == 0) result = recorder.result();
  });
  return result;
}

template <class Precision>
StageResult run_precision(Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show) {
  using namespace zero::stage;
  if (options.stage == "none") {
    return run_stage<Replicated, Precision>(options, text, stop_requested, show);
  }
  if (options.stage == "pos") {
    return run_stage<Pos, Precision>(options, text, stop_requested, show);
  }
  if (options.stage == "pos+g") {
    return run_stage<PosG, Precision>(options, text, stop_requested, show);
  }
  if (options.stage == "pos+g+p") {
    return run_stage<PosGP, Precision>(options, text, stop_requested, show);
  }
  throw std::invalid_argument("unknown stage '" + options.stage + "'");
}

}  // namespace gpt
