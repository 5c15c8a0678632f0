/// @file
/// How much of a proof is run.
#pragma once

#include <cstddef>
#include <cstdlib>

namespace checkpoint_tests {

/// As many as the environment says in ZERO_CHECKPOINT_RUNS, for a proof in full; otherwise what a
/// test has time for.
[[nodiscard]] inline std::size_t runs(std::size_t usual) {
  char const* const all = std::getenv("ZERO_CHECKPOINT_RUNS");
  return all == nullptr ? usual : std::strtoull(all, nullptr, 10);
}

}  // namespace checkpoint_tests
