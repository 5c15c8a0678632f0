/// @file
/// The options that describe a model and a run.
#pragma once

#include "model.hpp"
#include "report.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace plan {

/// What the user says of a model and a run.
struct SetupOptions {
  double parameters = 7.5e9;
  int layers = 0;            ///< 0: what `parameters` needs
  std::uint64_t hidden = 0;  ///< 0: as above
  std::uint64_t heads = 0;   ///< 0: 64 channels each
  std::string file;          ///< of the model; empty: by numbers
  bool plain_rows = false;
  bool no_dropout = false;
  CLI::Option* sequence = nullptr;   ///< whether it was named counts where a file has one, too
  CLI::Option* attention = nullptr;  ///< likewise, where a device has no fused one
  Setup setup{};                     ///< all else

  /// With the model that is meant.
  [[nodiscard]] Setup complete() const;
  /// The same on a device: plain attention where it has no fused one, unless it was named.
  [[nodiscard]] Setup complete(Device const& device) const;
  /// Has the user named the width?
  [[nodiscard]] bool exact() const { return layers > 0 || !file.empty(); }
};

/// Options for a model.
void add_model(CLI::App& sub, SetupOptions& options);
/// Options for a model of several types, or of which adapters alone are trained.
void add_types(CLI::App& sub, SetupOptions& options);
/// Options for what is the same whatever is advised: ranks, precision, rule, ...
void add_policies(CLI::App& sub, SetupOptions& options);
/// Options for batch, accumulation, activations and model-parallel ranks.
void add_run(CLI::App& sub, SetupOptions& options);
/// An option for a cluster, by name or by file.
CLI::Option* add_cluster(CLI::App& sub, std::string& into, std::vector<std::string> more = {});

/// A number such as 7.5e9, 70B or 2T.
CLI::Option* add_number(CLI::App& sub,
                        std::string const& name,
                        double& into,
                        std::string const& help);
/// A size in bytes, such as 32GB or 25MiB.
CLI::Option* add_size(CLI::App& sub,
                      std::string const& name,
                      std::uint64_t& into,
                      std::string const& help);
/// The same of a device's memory: a number of which the unit was forgotten is refused.
CLI::Option* add_memory_size(CLI::App& sub,
                             std::string const& name,
                             std::uint64_t& into,
                             std::string const& help);

/// A sentence that says which model is meant.
[[nodiscard]] std::string sentence(Transformer const& model);
/// A sentence that says how a model is trained.
[[nodiscard]] std::string sentence(Setup const& setup);

/// How far simulated times are from measured ones, as a sentence's end and as a cell.
[[nodiscard]] std::string error_of(Cluster const& cluster);
[[nodiscard]] Cell error_bar(Cluster const& cluster);

/// What is exact, and what is not.
inline constexpr char const* estimate_note =
    "Working activations are an estimate (Korthikanti et al. 2205.05198, with the gradients of the "
    "block at\nwork and the head's scores). All else is the library's own plan, to the byte.";

}  // namespace plan
