/// @file
/// Predictions for this machine, held against runs of train_gpt that calibration has not seen.
#pragma once

#include "machine.hpp"
#include "report.hpp"

#include <string>
#include <vector>

namespace plan {

/// A run of train_gpt.
struct Run {
  std::string name;
  zero::planner::Setup setup;
  double seconds = 0.;  ///< of a step: the median over steps, as measured
};

/// Calibration, runs, and what is left of the calibration's triad and ping-pong after them.
struct Round {
  Machine machine;
  std::vector<Run> runs;
  double triad = 0.;      ///< seconds, afterwards
  double ping_pong = 0.;  ///< seconds, afterwards
};

/// What is asked for.
struct HereOptions {
  int rounds = 20;        ///< to keep
  double seconds = 12.;   ///< of a calibration
  double run = 1.;        ///< seconds of training in a run
  std::string train_gpt;  ///< program; empty: beside this one
  std::string save;       ///< file for the rounds; empty: none
  std::string recorded;   ///< file with rounds that were saved, instead of new ones
};

/// Rounds, or those that were recorded, with all predictions and errors.
[[nodiscard]] Report validate_here(HereOptions const& options);

}  // namespace plan
