#include "position.hpp"

#include "../whole_number.hpp"

#include <cstdint>
#include <limits>
#include <stdexcept>

namespace gpt {

namespace {

nlohmann::json settings(Options const& options, Text const& text) {
  std::uint64_t hash = 0;
  for (std::uint8_t const byte : text.training) hash = random_bits(hash, byte);
  return {{"heads", options.model.heads},
          {"context", options.model.context},
          {"batch", options.batch},
          {"model_parallel", options.model_parallel},
          {"micro_batches", options.models() * options.accumulate},
          {"steps", options.steps},
          {"lr", options.learning_rate},
          {"clip", options.clip},
          {"seed", options.seed},
          {"base", text.base},
          {"text", hash}};
}

}  // namespace

nlohmann::json position(Options const& options, Text const& text, int next_step) {
  return {{"trainer", "gpt"}, {"next_step", next_step}, {"settings", settings(options, text)}};
}

Resumption resumption(nlohmann::json const& saved, Options const& options, Text const& text) try {
  if (saved.at("trainer") != "gpt") throw std::runtime_error("it is another trainer's");
  int const most = (std::numeric_limits<int>::max)();
  Resumption result{.next_step = example::whole_number(saved, "next_step", 0, most), .changed = {}};
  nlohmann::json before = saved.at("settings");
  // Older checkpoints are of runs that did not have the option.
  before.emplace("model_parallel", 1);
  before.emplace("base", 0);
  nlohmann::json const here = settings(options, text);
  for (auto const& [name, now] : here.items()) {
    if (before.at(name) == now) continue;
    // Adapters mean nothing to another base, which the checkpoint does not have.
    if (name == "base") throw std::runtime_error("its adapters are of another base");
    if (name == "heads") {
      throw std::runtime_error("it is of a model of " + before.at(name).dump() + " heads");
    }
    result.changed += (result.changed.empty() ? "" : ", ") + name;
    if (name != "text") result.changed += " was " + before.at(name).dump();
  }
  return result;
} catch (std::exception const& error) {
  throw std::runtime_error(std::string("cannot resume from the checkpoint: ") + error.what());
}

}  // namespace gpt
