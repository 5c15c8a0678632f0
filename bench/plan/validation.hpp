/// @file
/// The subcommands of validate-plan, each in a file of its own.
#pragma once

#include "plan/report.hpp"

namespace plan {

void add_figures(CLI::App& app, Command& command);  ///< figures
void add_rows(CLI::App& app, Command& command);     ///< rows
void add_advice(CLI::App& app, Command& command);   ///< advice
void add_here(CLI::App& app, Command& command);     ///< here
void add_claims(CLI::App& app, Command& command);   ///< claims

}  // namespace plan
