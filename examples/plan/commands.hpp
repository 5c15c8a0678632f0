/// @file
/// The subcommands of zero-plan, each in a file of its own.
#pragma once

#include "report.hpp"

namespace plan {

void add_paper(CLI::App& app, Command& command);      ///< table1, table2, fig1, pa
void add_memory(CLI::App& app, Command& command);     ///< memory
void add_traffic(CLI::App& app, Command& command);    ///< traffic
void add_advise(CLI::App& app, Command& command);     ///< advise
void add_simulate(CLI::App& app, Command& command);   ///< simulate
void add_calibrate(CLI::App& app, Command& command);  ///< calibrate
void add_clusters(CLI::App& app, Command& command);   ///< clusters
void add_sums(CLI::App& app, Command& command);       ///< sums
void add_formats(CLI::App& app, Command& command);    ///< formats

}  // namespace plan
