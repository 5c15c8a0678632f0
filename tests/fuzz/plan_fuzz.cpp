/// Files that zero-plan reads: a calibration, and recorded rounds. What is taken can be simulated,
/// and reads the same when it is written again.
#include "../../examples/plan/here.hpp"
#include "../../examples/plan/machine.hpp"
#include "fuzz/input.hpp"
#include "fuzz/place.hpp"

#include <sstream>

namespace plan {

// What measures, and a simulation of all optimizers at once, are no readers.
std::vector<Work> library_work(std::string const& /*precision*/) { return {}; }
std::vector<Work> model_work(std::string const& /*precision*/) { return {}; }
std::vector<zero::planner::Timing> measure(std::vector<Work> const& /*work*/,
                                           int /*ranks*/,
                                           double /*seconds*/,
                                           ShowPart const& /*show*/) {
  return {};
}
std::vector<zero::planner::Timing> witnesses(int /*ranks*/) { return {}; }
Cell percent(double part, bool /*sign*/) { return {"", part}; }
std::string fixed(double /*value*/, int /*decimals*/) { return {}; }

/// Each kind of work once, as units of the model ask for it.
zero::simulate::StepTime steady_step(zero::simulate::World& /*world*/,
                                     zero::planner::Setup const& setup,
                                     zero::simulate::Computation const& pass) {
  for (int const unit : {0, 1, setup.model.layers + 1}) {
    pass.forward(unit);
    pass.backward(unit);
  }
  return {.seconds = 1.};
}

}  // namespace plan

namespace {

/// A calibration in which each kind of work has as many sizes as its first letter says.
plan::Machine sample() {
  plan::Machine machine;
  std::istringstream names(
      "1triad,1ping-pong,3linear forward,3linear backward,3attention forward,3attention backward,"
      "2layer norm forward,2layer norm backward,1gelu forward,1gelu backward,1sum,"
      "2embedding and head,1unpack,1accumulate");
  for (std::string name; std::getline(names, name, ',');) {
    auto const sizes = static_cast<std::size_t>(name[0] - '0');
    machine.timings[2].push_back({.name = name.substr(1),
                                  .sizes = std::vector(sizes, std::vector{8., 512.}),
                                  .seconds = std::vector(std::size_t{1} << sizes, 1e-3)});
  }
  return machine;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  fuzz::Input input(data, size);
  bool const recorded = input.flag();
  fuzz::json json = fuzz::json::parse(plan::json_of(sample()).dump());
  if (recorded) {
    auto rounds = fuzz::json::parse(
        R"([{"triad":1e-3,"ping-pong":1e-3,"runs":[{"name":"x","ranks":2,"stage":"pos","layers":2,)"
        R"("hidden":64,"heads":4,"sequence":32,"batch":1,"bucket":65536,"seconds":1}]}])");
    rounds[0]["calibration"] = std::move(json);
    json = {{"rounds", std::move(rounds)}};
  }
  fuzz::Place const place("");
  std::string const path = place.path + "/file";
  fuzz::spill(path, fuzz::changed_text(json, input));
  try {
    if (recorded) {
      static_cast<void>(plan::validate_here({.recorded = path}));
      return 0;
    }
    plan::Machine const machine = plan::read_machine(path);
    fuzz::require(plan::machine_of(plan::json_of(machine)).timings == machine.timings,
                  "a calibration is another one when it is written");
    for (auto const& [ranks, timings] : machine.timings) {
      zero::simulate::World world(machine.cluster(ranks));
      zero::planner::Setup const setup{.model = {.layers = 2, .hidden = 64, .heads = 4},
                                       .ranks = ranks,
                                       .policies = {.precision = machine.precision}};
      static_cast<void>(plan::trainer_step(world, machine, setup));
    }
  } catch (zero::Error const& error) {
    fuzz::require(error.kind() == zero::ErrorKind::invalid_argument, error.what());
  }
  return 0;
}
