/// zero-plan simulate: the time of a step on a cluster that is only described.
#include "commands.hpp"
#include "files.hpp"
#include "machine.hpp"
#include "model/trace.hpp"
#include "setup_options.hpp"
#include "steps.hpp"

#include <algorithm>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

using zero::Op;
namespace simulate = plan::simulate;

struct SimulateOptions {
  SetupOptions setup;
  std::string cluster = "dgx-h100";
  std::vector<int> ranks{1024, 8192, 100'000};
  std::vector<std::string> stages = stage_names();
  std::string trace;
  std::string sums;
  int per_node = 0;
  std::uint64_t network = 0;
  double computing = 0.;
  double tokens = 0.;                             ///< of the training; 0: not asked
  std::string calibration = default_calibration;  ///< of the cluster `this`
  CLI::App* sub = nullptr;                        ///< says what was named
};

Sums named(std::string const& sums) {
  return sums == "flat" ? Sums::flat : sums == "chained" ? Sums::chained : Sums::automatic;
}

/// The cluster that is meant.
Cluster described(SimulateOptions const& options) {
  Cluster cluster = named_cluster(options.cluster);
  if (options.per_node > 0) cluster.devices_per_node = options.per_node;
  if (options.network > 0) {
    cluster.between.rate = static_cast<double>(options.network);
    cluster.between.fraction = 1.;
    cluster.adapters = cluster.adapters_per_group = 1;
  }
  // Another cluster, of which no error is known.
  if (options.per_node > 0 || options.network > 0 || options.computing > 0. ||
      !options.sums.empty()) {
    cluster.error = 0.;
  }
  return cluster;
}

/// A step, whose trace is left in `world`. All computation is as much slower or faster than the
/// cluster's as a measured one was.
StepTime step_of(std::unique_ptr<World>& world,
                 Cluster cluster,
                 Setup const& setup,
                 SimulateOptions const& options,
                 bool traced) {
  std::optional<Sums> mpi;
  if (!options.sums.empty()) mpi = named(options.sums);
  auto const step = [&] {
    world = std::make_unique<World>(cluster, mpi);
    world->timeline().keep_events(traced);
    return steady_step(*world, setup);
  };
  StepTime const taken = step();
  if (options.computing == 0.) return taken;
  double const slower = options.computing / taken.computed;
  cluster.device.flops /= slower;
  cluster.device.memory_rate /= slower;
  cluster.device.launch *= slower;
  return step();
}

/// Of all collectives.
double sum(simulate::Timeline const& time, double simulate::OpTime::*of) {
  double total = 0.;
  for (int op = 0; op < zero::op_count; ++op) total += time.of(static_cast<Op>(op)).*of;
  return total;
}

/// What one bucket costs, by each algorithm: where latency takes over.
Table algorithms(std::vector<Setup> const& setups, Cluster const& cluster) {
  Table table{.name = "bucket",
              .title =
                  "A reduce-scatter of one bucket of the data axis, by algorithm, which has not "
                  "been validated against real runs",
              .columns = {"ranks", "bytes of a rank"},
              .rows = {}};
  for (int i = 0; i < algorithm_count; ++i) {
    table.columns.emplace_back(name(static_cast<Algorithm>(i)));
  }
  table.columns.emplace_back("latency of the best");
  for (Setup const& setup : setups) {
    simulate::Placement const axis = data_axis(setup, cluster);
    auto const ranks = static_cast<std::uint64_t>(axis.size);
    std::uint64_t const quantum = 512 * ranks * 2;
    std::uint64_t const bytes = std::max(quantum, setup.bucket.bytes / quantum * quantum) / ranks;
    auto const of = static_cast<double>(bytes);
    std::vector<Cell> row{ranks, bytes};
    for (int i = 0; i < algorithm_count; ++i) {
      auto const algorithm = static_cast<Algorithm>(i);
      row.push_back(
          rough_duration(cost(cluster, axis, Op::reduce_scatter, of, algorithm).seconds()));
    }
    auto const best = cost(cluster, axis, Op::reduce_scatter, of);
    row.push_back(percent(best.seconds() > 0. ? best.latency / best.seconds() : 0.));
    table.rows.push_back(std::move(row));
  }
  return table;
}

void write(simulate::Timeline const& time, std::string const& path) {
  std::ofstream file(path);
  write_trace(file, time);
  if (!file.flush()) zero::fail(zero::ErrorKind::resource, {"cannot write '", path, "'"});
}

/// What train_gpt takes for what was not named.
Setup trainer_setup(SimulateOptions const& options) {
  SetupOptions setup = options.setup;
  auto const named = [&](char const* option) { return options.sub->count(option) > 0; };
  if (named("--params") || named("--vocab")) {
    zero::fail(zero::ErrorKind::invalid_argument,
               "on 'this' train_gpt runs, by --layers and --hidden, of 256 words");
  }
  if (!setup.exact()) setup.layers = 4, setup.hidden = 128;
  if (setup.heads == 0) setup.heads = 4;
  setup.setup.model.vocab = 256;
  if (!named("--sequence")) setup.setup.model.sequence = 64;
  if (!named("--batch")) setup.setup.batch = 4;
  return setup.complete();
}

/// A step of train_gpt on the machine that was measured.
Report make_here(SimulateOptions const& options) {
  Machine const machine = read_machine(options.calibration);
  Setup setup = trainer_setup(options);
  if (!options.sub->count("--precision")) setup.policies.precision = machine.precision;
  std::vector<int> ranks = options.ranks;
  if (!options.sub->count("--ranks")) {
    ranks.clear();
    for (auto const& [number, timings] : machine.timings) ranks.push_back(number);
  }
  Table table{.name = "steps",
              .title = "A step of train_gpt, by ranks and stage",
              .columns = {"ranks", "stage", "step", "tokens/s", "model", "library", "collectives"},
              .rows = {}};
  bool traced = options.trace.empty();
  for (int const number : ranks) {
    setup.ranks = number;
    for (std::string const& stage : options.stages) {
      setup.policies.stage = stage;
      World world(machine.cluster(number));
      world.timeline().keep_events(true);
      StepTime const step = trainer_step(world, machine, setup);
      if (!std::exchange(traced, true)) write(world.timeline(), options.trace);
      double model = 0.;
      for (simulate::Event const& event : world.timeline().events()) {
        bool const computes = event.queue == simulate::Event::Queue::compute;
        if (computes && event.number >= 0) model += event.end - event.begin;
      }
      double const tokens = static_cast<double>(setup.batch * setup.micro_steps) *
                            static_cast<double>(setup.model.sequence) * number;
      table.rows.push_back({static_cast<std::uint64_t>(number),
                            stage,
                            duration(step.seconds),
                            {fixed(tokens / step.seconds, 0), tokens / step.seconds},
                            duration(model),
                            duration(step.computed - model),
                            duration(step.exposed)});
    }
  }
  Report report;
  report.head = {sentence(setup.model),
                 sentence(setup).substr(sentence(setup).find(", ") + 2),
                 "This machine, as " + options.calibration + " has it."};
  report.tables = {std::move(table)};
  report.notes = {
      "Ranks are threads, which carry out collectives themselves while they wait: nothing "
      "overlaps.",
      "'validate-plan here' holds such predictions against runs of train_gpt."};
  return report;
}

Report make(SimulateOptions const& options) {
  Progress const progress("simulating steps");
  if (options.cluster == "this") return make_here(options);
  Cluster const cluster = described(options);
  Setup setup = options.setup.complete(cluster.device);
  Report report;
  report.head = {sentence(setup.model)};
  Table table{.name = "steps",
              .title = "A step on " + cluster.name + ", by ranks and stage",
              .columns = {"ranks",
                          "stage",
                          "GB of a device",
                          "fits",
                          "step",
                          "error",
                          "tokens/s",
                          "of a device",
                          "MFU",
                          "HFU",
                          "computing",
                          "waiting for others",
                          "latency on links"},
              .rows = {}};
  if (options.tokens > 0.) table.columns.emplace_back("training");
  Chart chart{
      .title = "operations of a device", .x_label = "ranks", .y_label = "TFLOP/s", .log_x = true};
  for (std::string const& stage : options.stages) chart.series.push_back({stage, {}});
  std::vector<Setup> setups;
  bool traced = options.trace.empty();
  for (int const ranks : options.ranks) {
    setup.ranks = ranks;
    setups.push_back(setup);
    for (std::size_t s = 0; s < options.stages.size(); ++s) {
      setup.policies.stage = options.stages[s];
      std::uint64_t const bytes = plan_device(setup).total_bytes();
      std::unique_ptr<World> world;
      StepTime const step = step_of(world, cluster, setup, options, !traced);
      if (!std::exchange(traced, true)) write(world->timeline(), options.trace);
      // Of two steps, of which the first one has the same collectives.
      double const latency = sum(world->timeline(), &simulate::OpTime::latency) / 2.;
      double const of_model = static_cast<double>(setup.tokens() * setup.micro_steps);
      double const rate = of_model / step.seconds * setup.models();
      auto const of_peak = [&](double operations) -> Cell {
        double const part = operations / step.seconds / cluster.device.flops;
        return {fixed(100. * part, 0) + " %", part};
      };
      table.rows.push_back(
          {static_cast<std::uint64_t>(ranks),
           options.stages[s],
           gigabytes(bytes, 1),
           bytes <= cluster.device.memory - cluster.device.memory / 10 ? "yes" : "no",
           rough_duration(step.seconds),
           error_bar(cluster),
           {rough(rate), rate},
           {rough(rate / ranks), rate / ranks},
           of_peak(step.operations.model),
           of_peak(step.operations.hardware),
           rough_duration(step.computed),
           rough_duration(step.exposed),
           rough_duration(latency)});
      if (options.tokens > 0.) table.rows.back().push_back(rough_duration(options.tokens / rate));
      chart.series[s].points.emplace_back(ranks, step.rate() / 1e12);
    }
  }
  report.head.push_back(sentence(setups.front()).substr(sentence(setups.front()).find(", ") + 2));
  report.tables = {std::move(table), algorithms(setups, cluster)};
  report.charts = {std::move(chart)};
  report.notes = {
      "Partition, buckets, prefetches and order are those of the library, which ran on this "
      "description.",
      "How long each piece takes is a model: " + error_of(cluster) + " (validate-plan rows).",
      "MFU and HFU are operations of the model, and of the hardware, which computes blocks again, "
      "of "
      "the peak.",
      "What fits leaves a tenth of a device to others and to what the estimate of activations errs "
      "by.",
      "Ranks that are late are not simulated. Collectives on the same links share them."};
  return report;
}

}  // namespace

void add_simulate(CLI::App& app, Command& command) {
  auto const options = std::make_shared<SimulateOptions>();
  CLI::App* const sub = add_command(
      app, command, "simulate", "The time of a step, by the library's own schedule", [options] {
        return make(*options);
      });
  add_model(*sub, options->setup);
  add_policies(*sub, options->setup);
  add_run(*sub, options->setup);
  sub->remove_option(sub->get_option("--ranks"));
  options->sub = sub;
  sub->add_option("--calibration",
                  options->calibration,
                  "What zero-plan calibrate has written, for the cluster 'this': train_gpt there");
  add_cluster(*sub, options->cluster, {"this"});
  add_number(*sub, "--tokens", options->tokens, "Of the training, such as 2T: how long it takes");
  sub->add_option("--ranks", options->ranks, "Devices, such as 1024,8192")
      ->delimiter(',')
      ->check(CLI::Range(1, 10'000'000));
  sub->add_option("--stage", options->stages, "Such as pos+g,pos+g+p")
      ->delimiter(',')
      ->check(CLI::IsMember(stage_names()));
  sub->add_option("--sums", options->sums, "Over zero::Mpi, which adds in this way")
      ->check(CLI::IsMember({"automatic", "flat", "chained"}));
  sub->add_option("--ranks-per-node", options->per_node, "Instead of the cluster's")
      ->check(CLI::Range(1, 1024));
  add_size(*sub, "--network", options->network, "Bytes a second between nodes, such as 125MB");
  sub->add_option("--computing", options->computing, "Seconds of it in a step, as measured")
      ->check(CLI::PositiveNumber);
  sub->add_option("--trace",
                  options->trace,
                  "Write the first of these steps as JSON for chrome://tracing or ui.perfetto.dev");
}

}  // namespace plan
