/// @file
/// The options that describe a model and a run.
#pragma once

#include "model.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>

namespace plan {

/// What the user says of a model and a run.
struct SetupOptions {
  double parameters = 7.5e9;
  int layers = 0;            ///< 0: what `parameters` needs
  std::uint64_t hidden = 0;  ///< 0: as above
  std::uint64_t heads = 0;   ///< 0: 64 channels each
  Setup setup{};             ///< all else

  /// With the model that is meant.
  [[nodiscard]] Setup complete() const;
  /// Has the user named the width?
  [[nodiscard]] bool exact() const { return layers > 0; }
};

/// Options for a model.
void add_model(CLI::App& sub, SetupOptions& options);
/// Options for what is the same whatever is advised: ranks, precision, rule, ...
void add_policies(CLI::App& sub, SetupOptions& options);
/// Options for batch, accumulation, activations and model-parallel ranks.
void add_run(CLI::App& sub, SetupOptions& options);

/// A size in bytes, such as 32GB or 25MiB.
CLI::Option* add_size(CLI::App& sub,
                      std::string const& name,
                      std::uint64_t& into,
                      std::string const& help);

/// A sentence that says which model is meant.
[[nodiscard]] std::string sentence(Transformer const& model);
/// A sentence that says how a model is trained.
[[nodiscard]] std::string sentence(Setup const& setup);

/// What is exact, and what is not.
inline constexpr char const* estimate_note =
    "Working activations are an estimate: 12 b s h elements for each block that keeps them (ZeRO "
    "3.2), 10 of\n12 over N_m, and b s V scores of the head. All else is the library's own plan, "
    "to the byte.";

}  // namespace plan
