/// @file
/// From the name of a stage to a run under it.
#pragma once

#include "options.hpp"
#include "rank_memory.hpp"
#include "result.hpp"
#include "text.hpp"

#include <atomic>

namespace gpt {

/// What the ranks of threads have.
using ThreadMemory = zero::Owned<RankMemory<>>;

/// Trains on `options.ranks` threads under the stage and with the precision that `options` names.
/// @throws std::invalid_argument  a name is unknown
StageResult run(Options const& options,
                Text const& text,
                std::atomic<bool> const& stop_requested,
                ShowProgress const& show);

/// The share of one rank of `world` in one precision's runs, each in a file of its own to compile
/// side by side. Collective.
/// @param memory  where the optimizer's memory comes from
template <class Precision, class World, class Memory>
StageResult run_precision(World& world,
                          Memory const& memory,
                          Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show);

}  // namespace gpt
