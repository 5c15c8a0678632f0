/// @file
/// A comparison of runs as a table for people and as JSON for programs.
#pragma once

#include "capacity.hpp"
#include "result.hpp"

#include <string>
#include <vector>

namespace gpt {

/// Do all runs agree in every loss and in every bit of their final state?
[[nodiscard]] bool bit_identical(std::vector<StageResult> const& results);

/// One row a figure, one column a run.
[[nodiscard]] std::string comparison_table(std::vector<StageResult> const& results);

/// The object described in `--help` under `--json`.
[[nodiscard]] std::string to_json(std::vector<StageResult> const& results);

/// One row a configuration; then their order, from the smallest to the largest model.
[[nodiscard]] std::string capacity_table(std::vector<Capacity> const& all);

/// An array with an object for each configuration.
[[nodiscard]] std::string to_json(std::vector<Capacity> const& all);

}  // namespace gpt
