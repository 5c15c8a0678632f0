/// @file
/// The largest model that trains in a fixed amount of memory.
#pragma once

#include "options.hpp"
#include "result.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace gpt {

/// What the search found under one configuration.
struct Capacity {
  std::string configuration;
  int blocks = 0;                ///< the most that train; 0: not even one
  std::uint64_t parameters = 0;  ///< of the whole model with so many
  StageResult result{};          ///< of training it
  int runs = 0;                  ///< that it took to find it
};

/// Trains once as the options say.
/// @throws zero::Error (resource) where a rank would need more than `options.budget` bytes
using Trial = std::function<StageResult(Options const&)>;

/// Searches, under each configuration of the paper's Table 3, for the most blocks with which a
/// model trains where a rank may hold `options.budget` bytes. What fits is found by training for
/// `options.steps` steps: nothing is computed in advance.
/// @return nothing if the user asked to stop
[[nodiscard]] std::optional<std::vector<Capacity>> find_capacity(Options const& options,
                                                                 Trial const& trial);

}  // namespace gpt
