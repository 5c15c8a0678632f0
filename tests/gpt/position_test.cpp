#include "position.hpp"

#include "support/test.hpp"

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

TEST_CASE("adapters of another base are refused, and older checkpoints are of none") {
  gpt::Options const options;
  gpt::Text const text{.training = {}, .validation = {}, .base = 3};
  auto saved = gpt::position(options, text, 7);
  CHECK(gpt::resumption(saved, options, text).next_step == 7);
  auto const refused = [&](gpt::Text const& now) {
    CHECK_THROWS_WITH_AS(static_cast<void>(gpt::resumption(saved, options, now)),
                         "cannot resume from the checkpoint: its adapters are of another base",
                         std::runtime_error);
  };
  refused({.training = {}, .validation = {}, .base = 4});
  refused({});
  saved["settings"].erase("base");
  refused(text);
  CHECK(gpt::resumption(saved, options, {}).changed.empty());
}

TEST_CASE("a step that is no number of steps is refused in words") {
  gpt::Options const options;
  nlohmann::json const sound = gpt::position(options, {}, 7);
  for (char const* const step : {"1e300",
                                 "-1e300",
                                 "1.5",
                                 "7.0",
                                 "-1",
                                 "2147483648",
                                 "18446744073709551615",
                                 "null",
                                 "true",
                                 "\"7\""}) {
    nlohmann::json saved = sound;
    saved["next_step"] = nlohmann::json::parse(step);
    std::string const why = "cannot resume from the checkpoint: 'next_step' is " +
                            saved["next_step"].dump() + ", not a whole number from 0 to 2147483647";
    CHECK_THROWS_WITH_AS(
        static_cast<void>(gpt::resumption(saved, options, {})), why.c_str(), std::runtime_error);
  }
  nlohmann::json saved = sound;
  for (int const step : {0, (std::numeric_limits<int>::max)()}) {
    saved["next_step"] = step;
    CHECK(gpt::resumption(saved, options, {}).next_step == step);
  }
  // Deeper than what writes it could go.
  nlohmann::json deep = 7;
  for (int i = 0; i < 100'000; ++i) deep = nlohmann::json::array({std::move(deep)});
  saved["next_step"] = std::move(deep);
  CHECK_THROWS_WITH_AS(static_cast<void>(gpt::resumption(saved, options, {})),
                       "cannot resume from the checkpoint: 'next_step' is array, not a whole "
                       "number from 0 to 2147483647",
                       std::runtime_error);
}

}  // namespace position_test
