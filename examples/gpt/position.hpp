/// @file
/// What the trainer adds to a checkpoint: its place in the data, and all that its losses depend on.
#pragma once

#include "options.hpp"
#include "text.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace gpt {

/// Batches are a pure function of seed, step and micro-batch, and so is every other random number:
/// the number of the next step is all of the random state that there is to save.
[[nodiscard]] nlohmann::json position(Options const& options, Text const& text, int next_step);

/// Where to go on from a checkpoint.
struct Resumption {
  int next_step = 0;
  std::string changed;  ///< what losses depend on and was something else then; empty if nothing
};

/// @throws std::runtime_error  it is of another program, or of a model that computes something else
[[nodiscard]] Resumption resumption(nlohmann::json const& saved,
                                    Options const& options,
                                    Text const& text);

}  // namespace gpt
