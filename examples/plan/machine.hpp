/// @file
/// This machine as it was measured: the cluster that is called `this`.
#pragma once

#include "measure.hpp"
#include "model.hpp"
#include "model/step.hpp"

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <vector>

namespace plan {

/// Ranks at once that are measured at most.
inline constexpr int most_ranks = 64;

/// What a calibration leaves behind.
struct Machine {
  std::string precision = "fp32";  ///< of the parameters and gradients that were measured
  int processors = 0;              ///< threads that run at once
  std::map<int, std::vector<Timing>> timings;  ///< by ranks, at work all at once

  /// As a cluster of one node with so many ranks, which carry out collectives themselves.
  /// @throws zero::Error (invalid_argument) if that number was not measured
  [[nodiscard]] Cluster cluster(int ranks) const;
};

/// Where a calibration is kept unless another file is named.
inline constexpr char const* default_calibration = "zero-calibration.json";

/// Measures everything, with a line of progress.
/// @param ranks    numbers of ranks
/// @param seconds  about, of all together
[[nodiscard]] Machine calibrate(std::string const& precision,
                                std::vector<int> const& ranks,
                                double seconds);

[[nodiscard]] nlohmann::ordered_json json_of(Machine const& machine);
/// @throws std::exception if that is no calibration
[[nodiscard]] Machine machine_of(nlohmann::json const& json);

/// @throws zero::Error (invalid_argument) if the file is no calibration
[[nodiscard]] Machine read_machine(std::string const& path);

/// A step of train_gpt on it: a GPT of 256 words, none of whose ranks share a model.
/// @param world  of a machine's `cluster`
/// @throws zero::Error (invalid_argument) for what train_gpt does not do, or was not measured
[[nodiscard]] StepTime trainer_step(World& world, Machine const& machine, Setup const& setup);

}  // namespace plan
