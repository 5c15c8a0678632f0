/// @file
/// Clusters and models as JSON files.
#pragma once

#include "model.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace plan {

/// A cluster as `zero-plan clusters --json` writes it and `--cluster FILE.json` reads it. Rates are
/// bytes or operations a second, memories bytes, latencies seconds.
[[nodiscard]] nlohmann::ordered_json json_of(Cluster const& cluster);
/// @throws std::exception if that is no cluster, with the name of what is missing, unknown or wrong
[[nodiscard]] Cluster cluster_in(nlohmann::json const& json);
/// The known cluster of that name, or that of a file whose name ends in .json.
/// @throws zero::Error (invalid_argument) if there is none
[[nodiscard]] Cluster named_cluster(std::string const& name);

/// A model as the config.json of Hugging Face's transformers describes it: model_type gpt2, llama,
/// or mistral without a sliding window.
/// @throws std::exception for an architecture that `Transformer` cannot describe, and for what is
///   not known to make no difference
[[nodiscard]] Transformer transformer_in(nlohmann::json const& config);
/// @throws zero::Error (invalid_argument), naming the file, as `transformer_in`
[[nodiscard]] Transformer read_transformer(std::string const& path);

}  // namespace plan
