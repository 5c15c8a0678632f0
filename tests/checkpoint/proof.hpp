/// @file
/// What tests of checkpoints share: what they include, how much of a proof is run, and what ranks
/// are told when something goes wrong.
#pragma once

#include "checkpoint/resealed.hpp"
#include "checkpoint/temporary_directory.hpp"
#include "checkpoint/trainer.hpp"
#include "support/refusal.hpp"
#include "support/sanitized.hpp"
#include "support/test.hpp"
#include "support/toy_model.hpp"
#include "zero/checkpoint.hpp"
#include "zero/zero.hpp"

#include <nlohmann/json.hpp>

namespace checkpoint_tests {

/// As many as the environment says in ZERO_CHECKPOINT_RUNS, for a proof in full; otherwise what a
/// test has time for.
[[nodiscard]] inline std::size_t runs(std::size_t usual) {
  char const* const all = std::getenv("ZERO_CHECKPOINT_RUNS");
  if (all != nullptr) return std::strtoull(all, nullptr, 10);
  return toy::sanitized ? usual / 5 : usual;
}

/// Kind and text of the error that `work` ends with; empty if it does not.
template <class Work>
std::string failure_of(Work&& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    return std::string(name(error.kind())) + ": " + error.message();
  }
  return "";
}

/// What each rank is told by `work(comm)`.
template <class Work>
std::vector<std::string> failures(int ranks, Work const& work) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    told[static_cast<std::size_t>(comm.rank())] = failure_of([&] { work(comm); });
  });
  return told;
}

/// What all ranks are told alike.
template <class Work>
std::string failure_of_all(int ranks, Work const& work) {
  auto const told = failures(ranks, work);
  for (std::string const& each : told) CHECK(each == told[0]);
  return told[0];
}

/// Checks that a text has these words.
inline void check_says(std::string const& text, std::string const& words) {
  CHECK_MESSAGE(text.find(words) != std::string::npos,
                "'" << text << "' without '" << words << "'");
}

}  // namespace checkpoint_tests
