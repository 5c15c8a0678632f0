#include "position.hpp"

#include <doctest/doctest.h>

#include <string>

// What a trainer says of a checkpoint that other options saved.
namespace position_test {

std::string changed(nlohmann::json const& saved, gpt::Options const& options) {
  gpt::Resumption const found = gpt::resumption(saved, options, {});
  CHECK(found.next_step == 7);
  return found.changed;
}

TEST_CASE("what has changed is said, and older checkpoints are of one rank for each model") {
  gpt::Options options;
  options.model_parallel = options.accumulate = 2;
  auto saved = gpt::position(options, {}, 7);
  CHECK(changed(saved, options).empty());
  options.ranks = 8;
  options.model_parallel = 4;
  CHECK(changed(saved, options) == "model_parallel was 2");
  options.model_parallel = 1;
  CHECK(changed(saved, options) == "micro_batches was 4, model_parallel was 2");
  options.accumulate = 1;
  options.ranks = 4;
  saved["settings"].erase("model_parallel");
  CHECK(changed(saved, options).empty());
  options.model_parallel = 2;
  options.accumulate = 2;
  CHECK(changed(saved, options) == "model_parallel was 1");
}

}  // namespace position_test
