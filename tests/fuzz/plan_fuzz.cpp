/// Calibrations, clusters and models that zero-plan reads: what is taken can be simulated, and
/// reads the same when it is written again.
#include "fuzz/input.hpp"
#include "plan/files.hpp"
#include "plan/machine.hpp"

#include <sstream>

namespace plan {

// What measures, and a simulation of all optimizers at once, are no readers.
std::vector<Work> library_work(std::string const& /*precision*/) { return {}; }
std::vector<Work> model_work(std::string const& /*precision*/) { return {}; }
std::vector<Timing> measure(std::vector<Work> const& /*work*/,
                            int /*ranks*/,
                            double /*seconds*/,
                            ShowPart const& /*show*/) {
  return {};
}
std::vector<Timing> witnesses(int /*ranks*/) { return {}; }
/// Each kind of work once, as units of the model ask for it.
StepTime steady_step(World& /*world*/, Setup const& setup, Computation const& pass) {
  for (int const unit : {0, 1, setup.model.layers + 1}) {
    pass.forward(unit);
    pass.backward(unit);
  }
  return {.seconds = 1.};
}

}  // namespace plan

namespace {

/// Reads a cluster or a model that differs from a good one.
void read_file(std::string const& path, fuzz::Input& input) {
  try {
    if (input.flag()) {
      auto const sample = plan::json_of(plan::cluster_of("dgx-h100"));
      fuzz::spill(path, fuzz::changed_text(fuzz::json::parse(sample.dump()), input));
      plan::Cluster const cluster = plan::named_cluster(path);
      fuzz::require(plan::cluster_in(fuzz::json::parse(plan::json_of(cluster).dump())) == cluster,
                    "a cluster is another one when it is written");
    } else {
      fuzz::json const sample{{"model_type", "llama"},
                              {"num_hidden_layers", 2},
                              {"hidden_size", 64},
                              {"num_attention_heads", 4},
                              {"num_key_value_heads", 2},
                              {"head_dim", 16},
                              {"intermediate_size", 96},
                              {"max_position_embeddings", 32},
                              {"tie_word_embeddings", true},
                              {"vocab_size", 100}};
      fuzz::spill(path, fuzz::changed_text(sample, input));
      plan::Transformer model = plan::read_transformer(path);
      model.layers = 1;
      fuzz::require(plan::parameters(model) > 0, "a model has no parameters");
    }
  } catch (zero::Error const& error) {
    fuzz::require(error.kind() == zero::ErrorKind::invalid_argument, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  // Each kind of work has as many sizes as its first letter says.
  std::istringstream names(
      "1triad,1ping-pong,3linear forward,3linear backward,3attention forward,3attention backward,"
      "2layer norm forward,2layer norm backward,1gelu forward,1gelu backward,1sum,"
      "2embedding and head,1unpack,1accumulate");
  plan::Machine sample;
  for (std::string name; std::getline(names, name, ',');) {
    auto const sizes = static_cast<std::size_t>(name[0] - '0');
    sample.timings[2].push_back({.name = name.substr(1),
                                 .sizes = std::vector(sizes, std::vector{8., 512.}),
                                 .seconds = std::vector(std::size_t{1} << sizes, 1e-3)});
  }
  fuzz::Input input(data, size);
  fuzz::Place const place("");
  std::string const path = place.path + "/file.json";
  if (input.flag()) {
    read_file(path, input);
    return 0;
  }
  fuzz::spill(path, fuzz::changed_text(fuzz::json::parse(plan::json_of(sample).dump()), input));
  try {
    plan::Machine const machine = plan::read_machine(path);
    fuzz::require(plan::machine_of(plan::json_of(machine)).timings == machine.timings,
                  "a calibration is another one when it is written");
    for (auto const& [ranks, timings] : machine.timings) {
      plan::World world(machine.cluster(ranks));
      plan::Setup const setup{.model = {.layers = 2, .hidden = 64, .heads = 4},
                              .ranks = ranks,
                              .policies = {.precision = machine.precision}};
      static_cast<void>(plan::trainer_step(world, machine, setup));
    }
  } catch (zero::Error const& error) {
    fuzz::require(error.kind() == zero::ErrorKind::invalid_argument, error.what());
  }
  return 0;
}
