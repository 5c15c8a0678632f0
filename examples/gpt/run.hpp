/// @file
/// From the name of a stage to a run under it.
#pragma once

#include "options.hpp"
#include "result.hpp"
#include "text.hpp"

#include <atomic>
#include <string_view>

namespace gpt {

/// Trains on `options.ranks` threads under the stage and with the precision that `options` names.
/// @throws std::invalid_argument  a name is unknown
StageResult run(Options const& options,
                Text const& text,
                std::atomic<bool> const& stop_requested,
                ShowProgress const& show);

/// One precision's share of `run`, each in a file of its own to compile side by side.
template <class Precision>
StageResult run_precision(Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show);

}  // namespace gpt
