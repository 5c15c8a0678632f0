/// @file
/// What the trainer's programs share: options, text, signals, and the printed result.
#pragma once

#include "options.hpp"
#include "result.hpp"
#include "text.hpp"

#include <CLI/CLI.hpp>

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace gpt {

inline constexpr int exit_usage = 2;
inline constexpr int exit_failure = 1;
inline constexpr int exit_interrupted = 130;

/// Every option but those that say what a rank is.
/// @param precisions  that the program has
void add_options(CLI::App& app,
                 Options& options,
                 std::vector<std::string> const& precisions = {"fp32", "bf16", "fp16"});

/// Checks the model and the grid of ranks, whose number is known by now, and reads the text to
/// learn from.
/// @throws std::invalid_argument  there is no such model
/// @throws std::runtime_error  a file is missing or empty, or all are too short for the context
[[nodiscard]] Text prepare(Options const& options);

/// From now on this signal asks to stop; a second one ends the program at once.
void stop_on(int signal);

/// Trains under one stage.
using Run = std::function<StageResult(
    Options const&, Text const&, std::atomic<bool> const&, ShowProgress const&)>;

/// Trains under the stage that `options` names, or several, and prints the comparison; or searches
/// for the largest model that fits.
/// @param print  does this process speak? Of several one does
/// @return the program's exit status
int train(Options const& options, Text const& text, Run const& run, bool print = true);

/// What main returns, of a program whose ranks are threads: reads options and text, and trains.
/// @param name     of the program
/// @param app      has all options, which write to `options`
int run_program(std::string const& name,
                CLI::App& app,
                int argc,
                char** argv,
                Options const& options,
                Run const& run);

}  // namespace gpt
