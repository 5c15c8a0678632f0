#include "machine.hpp"

#include "../whole_number.hpp"
#include "read_json.hpp"
#include "steps.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

namespace plan {

namespace {

using nlohmann::ordered_json;

constexpr char const* format = "zero-plan calibration 1";

Timing const* find(std::vector<Timing> const& timings, std::string const& name) {
  auto const found =
      std::ranges::find_if(timings, [&](Timing const& one) { return one.name == name; });
  return found == timings.end() ? nullptr : &*found;
}

/// What a cluster's own rates are taken from has as many sizes as they are asked for.
void require_sizes(Timing const& timing) {
  std::size_t const sizes = timing.name == "triad"            ? 1
                            : timing.name == "linear forward" ? 3
                                                              : timing.sizes.size();
  if (timing.sizes.size() == sizes) return;
  zero::fail(
      zero::ErrorKind::invalid_argument,
      {"'", timing.name, "' is measured by ", sizes, " sizes, not by ", timing.sizes.size()});
}

/// The computation of the example GPT, as examples/gpt/model.cpp has it, unit by unit.
class TrainerPass {
 public:
  TrainerPass(World& world, Setup const& setup)
      : world_(&world),
        model_(setup.model),
        T_(static_cast<double>(setup.batch * setup.model.sequence)),
        pieces_(static_cast<double>(setup.batch * setup.model.heads)) {}

  void forward(int unit) const {
    if (unit == 0) return;  // is measured together with the head
    double const h = width();
    if (unit > model_.layers) return take("embedding and head", {T_, h}, "ends", unit);
    take("unpack", {12. * h * h + 13. * h}, "unpack", unit);
    for (int i = 0; i < 2; ++i) take("layer norm forward", {T_, h}, "layer norm", unit);
    product("linear forward", unit);
    attention("attention forward", unit);
    take("gelu forward", {4. * T_ * h}, "gelu", unit);
    for (int i = 0; i < 2; ++i) take("sum", {T_ * h}, "sum", unit);
  }
  void backward(int unit) const {
    if (unit == 0 || unit > model_.layers) return;
    double const h = width();
    take("unpack", {12. * h * h + 13. * h}, "unpack", unit);
    product("linear backward", unit);
    for (int i = 0; i < 2; ++i) take("layer norm backward", {T_, h}, "layer norm", unit);
    attention("attention backward", unit);
    take("gelu backward", {4. * T_ * h}, "gelu", unit);
    take("accumulate", {12. * h * h + 13. * h}, "accumulate", unit);
  }

 private:
  [[nodiscard]] double width() const { return static_cast<double>(model_.hidden); }
  void attention(std::string_view what, int unit) const {
    double const head = width() / static_cast<double>(model_.heads);
    take(what, {pieces_, static_cast<double>(model_.sequence), head}, "attention", unit);
  }
  void take(std::string_view what,
            std::initializer_list<double> sizes,
            std::string_view shown,
            int unit) const {
    world_->timeline().compute(world_->cluster().device.timed(what, sizes), shown, unit);
  }
  /// Queries, keys and values; what attention yields; both layers of the MLP.
  void product(std::string_view what, int unit) const {
    double const h = width();
    take(what, {T_, 3. * h, h}, "linear", unit);
    take(what, {T_, h, h}, "linear", unit);
    take(what, {T_, 4. * h, h}, "linear", unit);
    take(what, {T_, h, 4. * h}, "linear", unit);
  }

  World* world_;
  Transformer model_;
  double T_;
  double pieces_;
};

/// A line that rewrites itself on a terminal, and three elsewhere.
ShowPart progress_line(int ranks) {
  bool const terminal = isatty(STDERR_FILENO) == 1;
  return [=, shown = -1](double part) mutable {
    int const percent = static_cast<int>(100. * part) / (terminal ? 1 : 50);
    if (std::exchange(shown, percent) == percent) return;
    std::fprintf(stderr,
                 "%scalibrating with %d at once: %3.0f %%%s",
                 terminal ? "\r\033[K" : "",
                 ranks,
                 100. * part,
                 terminal && part < 1. ? "" : "\n");
  };
}

}  // namespace

Cluster Machine::cluster(int ranks) const {
  auto const found = timings.find(ranks);
  if (found == timings.end()) {
    std::string known;
    for (auto const& [number, list] : timings) {
      known += (known.empty() ? "" : ", ") + std::to_string(number);
    }
    zero::fail(zero::ErrorKind::invalid_argument,
               {"'this' was measured with ",
                known,
                known == "1" ? " rank, not with " : " ranks, not with ",
                ranks,
                ": zero-plan calibrate --ranks ",
                ranks});
  }
  Cluster result{.name = "this",
                 .devices_per_node = ranks,
                 .device = {.name = "one rank", .memory_rate = 1., .flops = 1.},
                 .inside = {.rate = 1.},
                 .between = {.rate = 1.},
                 .host = {.rate = 1.},
                 .by_ranks = true};
  result.device.measured = found->second;
  for (Timing const& timing : found->second) timing.validate();
  if (Timing const* const triad = find(found->second, "triad")) {
    result.device.memory_rate = triad->sizes.front().front() / triad->seconds.front();
    result.inside.rate = result.host.rate = result.between.rate = result.device.memory_rate;
  }
  if (Timing const* const product = find(found->second, "linear forward")) {
    double const operations =
        2. * product->sizes[0].back() * product->sizes[1].back() * product->sizes[2].back();
    result.device.flops = operations / product->seconds.back();
  }
  return result;
}

Machine calibrate(std::string const& precision, std::vector<int> const& ranks, double seconds) {
  std::vector<Work> all = library_work(precision);
  std::vector<Work> const model = model_work(precision);
  all.insert(all.end(), model.begin(), model.end());
  Machine machine{.precision = precision,
                  .processors = static_cast<int>(std::thread::hardware_concurrency()),
                  .timings = {}};
  // Before all else and alone, so that whoever looks again can do the same: among other work, the
  // triad takes a quarter longer.
  for (int const number : ranks) machine.timings[number] = witnesses(number);
  for (int const number : ranks) {
    double const share = seconds / static_cast<double>(ranks.size());
    std::vector<Timing> const found = measure(all, number, share, progress_line(number));
    std::vector<Timing>& timings = machine.timings[number];
    timings.insert(timings.end(), found.begin(), found.end());
  }
  return machine;
}

ordered_json json_of(Machine const& machine) {
  ordered_json all{{"format", format},
                   {"precision", machine.precision},
                   {"processors", machine.processors},
                   {"measured", ordered_json::array()}};
  for (auto const& [ranks, timings] : machine.timings) {
    ordered_json list = ordered_json::array();
    for (Timing const& one : timings) {
      list.push_back({{"name", one.name}, {"sizes", one.sizes}, {"seconds", one.seconds}});
    }
    all["measured"].push_back({{"ranks", ranks}, {"timings", std::move(list)}});
  }
  return all;
}

Machine machine_of(nlohmann::json const& json) {
  nlohmann::json const& found = json.at("format");
  if (found != format) {
    zero::fail(zero::ErrorKind::invalid_argument,
               {"a calibration is '", format, "', not ", example::shown(found)});
  }
  Machine machine{.precision = json.at("precision"),
                  .processors = example::whole_number(json, "processors", 0, 1 << 20),
                  .timings = {}};
  for (nlohmann::json const& one : json.at("measured")) {
    auto& list = machine.timings[example::whole_number(one, "ranks", 1, most_ranks)];
    for (nlohmann::json const& timing : one.at("timings")) {
      list.push_back({.name = timing.at("name"),
                      .sizes = timing.at("sizes"),
                      .seconds = timing.at("seconds")});
      list.back().validate();
      require_sizes(list.back());
    }
  }
  return machine;
}

Machine read_machine(std::string const& path) {
  return read_json(path, "zero-plan calibrate", machine_of);
}

StepTime trainer_step(World& world, Machine const& machine, Setup const& setup) {
  if (setup.policies.precision != machine.precision) {
    zero::fail(zero::ErrorKind::invalid_argument,
               {"'this' was measured in ",
                machine.precision,
                ", not in ",
                setup.policies.precision,
                ": zero-plan calibrate --precision"});
  }
  if (setup.model_parallel != 1 || setup.activations != "keep") {
    zero::fail(zero::ErrorKind::invalid_argument,
               "on 'this' each rank holds a whole model and keeps its activations");
  }
  TrainerPass const pass(world, setup);
  return steady_step(world,
                     setup,
                     {.forward = [&](int unit) { pass.forward(unit); },
                      .backward = [&](int unit) { pass.backward(unit); }});
}

}  // namespace plan
