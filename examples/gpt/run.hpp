/// @file
/// From the name of a stage to a run under it.
#pragma once

#include "options.hpp"
#include "rank_memory.hpp"
#include "result.hpp"
#include "text.hpp"

#include <atomic>
#include <concepts>
#include <string>
#include <vector>

namespace gpt {

/// What the ranks of threads have.
using ThreadMemory = zero::Owned<RankMemory<>>;

/// Trains on `options.ranks` threads under the stage and with the precision and rule that `options`
/// names.
/// @throws std::invalid_argument  a name is unknown, or a rule is not compiled with this precision
StageResult run(Options const& options,
                Text const& text,
                std::atomic<bool> const& stop_requested,
                ShowProgress const& show);

/// What threads have: each precision with some of the rules.
[[nodiscard]] std::vector<std::string> precision_names();
[[nodiscard]] std::vector<std::string> rule_names();

/// Are micro-steps added up in shares of these? Of state formats they are not, because that is as
/// many optimizers more to compile.
template <class Precision, class Rule>
inline constexpr bool accumulates =
    std::same_as<Rule, zero::AdamW> && !zero::RoundingPrecision<Precision>;

/// The share of one rank of `world` in the runs of one precision and rule, each in a file of its
/// own to compile side by side. Collective.
/// @param memory  where the optimizer's memory comes from
template <class Precision, class Rule = zero::AdamW, class World, class Memory>
StageResult run_precision(World& world,
                          Memory const& memory,
                          Options const& options,
                          Text const& text,
                          std::atomic<bool> const& stop_requested,
                          ShowProgress const& show);

}  // namespace gpt
