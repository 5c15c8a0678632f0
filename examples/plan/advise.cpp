/// zero-plan advise: the fastest configuration that fits, and why others are none.
#include "commands.hpp"
#include "files.hpp"
#include "setup_options.hpp"
#include "steps.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

using zero::Role;

struct AdviseOptions : SetupOptions {
  std::string cluster = "dgx-a100";
  int devices = 64;
  std::uint64_t device_memory = 0;  ///< 0: the cluster's
  std::uint64_t reserve = 0;
  CLI::Option* reserved = nullptr;  ///< was `reserve` named? Else it is a tenth
  std::uint64_t sequences = 0;      ///< 0: 8 a device
  double tokens = 0.;               ///< of the training; 0: not asked
  std::string by = "time";
  std::size_t show = 10;
};

Question question_of(AdviseOptions const& options) {
  Question question;
  question.cluster = named_cluster(options.cluster);
  question.setup = options.complete(question.cluster.device);
  question.setup.ranks = options.devices;
  question.step = [cluster = question.cluster](Setup const& setup) {
    return seconds_of_step(cluster, setup);
  };
  if (options.device_memory > 0) question.cluster.device.memory = options.device_memory;
  if (options.reserve >= question.cluster.device.memory) {
    zero::fail(zero::ErrorKind::invalid_argument,
               {"--reserve ",
                options.reserve,
                " leaves nothing of a device's ",
                question.cluster.device.memory,
                " bytes"});
  }
  question.budget =
      question.cluster.device.memory -
      (options.reserved->count() > 0 ? options.reserve : question.cluster.device.memory / 10);
  question.sequences =
      options.sequences > 0 ? options.sequences : 8 * static_cast<std::uint64_t>(options.devices);
  question.by_time = options.by == "time";
  return question;
}

/// Tokens of all models in a step.
double tokens_of(Setup const& setup) {
  return static_cast<double>(setup.tokens() * setup.micro_steps) * setup.models();
}

Table fitting_table(Advice const& advice, AdviseOptions const& options, Cluster const& cluster) {
  Table table{.name = "fitting",
              .title = "configurations that fit, the best first",
              .columns = {"stage",
                          "N_m",
                          "checkpoint",
                          "batch",
                          "micro-steps",
                          "accumulate",
                          "GB a device",
                          "GB sent",
                          "step",
                          "error",
                          "of the first",
                          "tokens/s"},
              .rows = {}};
  if (options.tokens > 0.) table.columns.emplace_back("training");
  for (Candidate const& one : advice.fitting) {
    if (table.rows.size() == options.show) break;
    double const rate = tokens_of(one.setup) / one.seconds;
    double const ratio = one.seconds / advice.fitting.front().seconds;
    table.rows.push_back({one.setup.policies.stage,
                          static_cast<std::uint64_t>(one.setup.model_parallel),
                          one.setup.activations,
                          one.setup.batch,
                          one.setup.micro_steps,
                          one.setup.policies.accumulation,
                          gigabytes(one.plan.total_bytes(), 1),
                          gigabytes(one.plan.sent_bytes(), 1),
                          rough_duration(one.seconds),
                          error_bar(cluster),
                          {fixed(ratio, 2), ratio},
                          {rough(rate), rate}});
    if (options.tokens > 0.) table.rows.back().push_back(rough_duration(options.tokens / rate));
  }
  return table;
}

Table bytes_table(DevicePlan const& plan) {
  Table table{.name = "bytes",
              .title = "bytes per device of the first",
              .columns = {"role", "bytes", "GB"},
              .rows = {}};
  auto const add = [&](std::string const& name, std::uint64_t bytes) {
    if (bytes > 0) table.rows.push_back({name, bytes, gigabytes(bytes)});
  };
  zero::MemoryBytes const held = plan.held();
  for (int r = 0; r < zero::role_count; ++r) {
    auto const role = static_cast<Role>(r);
    add(std::string(zero::name(role)), held[role]);
  }
  add("working activations (estimate)", plan.working.total());
  add("total", plan.total_bytes());
  return table;
}

std::string subject(Candidate const& of) {
  std::string const ranks = std::to_string(of.setup.model_parallel) +
                            (of.setup.model_parallel == 1 ? " rank" : " ranks") + " to a model";
  if (of.setup.policies.stage.empty()) return "Any stage with " + ranks;
  return of.setup.policies.stage + " with " + ranks + ", checkpoints " + of.setup.activations + ",";
}

Report make(AdviseOptions const& options) {
  Progress const progress("comparing configurations");
  Question const question = question_of(options);
  Advice const advice = advise(question);
  Report report;
  report.head = {sentence(question.setup.model),
                 std::to_string(options.devices) + " devices of " + question.cluster.name +
                     " with " + gigabytes(question.budget, 1).text + " GB each, " +
                     std::to_string(question.sequences) + " sequences a step, " +
                     question.setup.policies.precision + ", " + question.setup.policies.rule + "."};
  if (advice.fitting.empty()) {
    report.head.emplace_back(
        "Nothing fits: more devices, or devices with more memory, are needed.");
  } else {
    Setup const& first = advice.fitting.front().setup;
    report.head.push_back("Take " + first.policies.stage + " on " + std::to_string(first.models()) +
                          (first.models() == 1 ? " model" : " models") + " of " +
                          std::to_string(first.model_parallel) +
                          (first.model_parallel == 1 ? " rank" : " ranks") + ", checkpoints " +
                          first.activations + ": " + std::to_string(first.micro_steps) +
                          (first.micro_steps == 1 ? " micro-step of " : " micro-steps of ") +
                          std::to_string(first.batch) +
                          (first.batch == 1 ? " sequence" : " sequences") + " a model.");
    report.tables.push_back(fitting_table(advice, options, question.cluster));
    report.tables.push_back(bytes_table(advice.fitting.front().plan));
  }
  Table rejected{.name = "rejected",
                 .title = "configurations that do not fit, with what holds least for them",
                 .columns = {"configuration", "why"},
                 .rows = {}};
  for (Candidate const& one : advice.rejected) {
    rejected.rows.push_back({subject(one), one.why + "."});
  }
  if (!rejected.rows.empty()) report.tables.push_back(std::move(rejected));
  report.notes = {"Least " + std::string(question.by_time ? "time" : "traffic") +
                      " first. Steps are simulated: " + error_of(question.cluster) + ".",
                  estimate_note};
  Chart chart{.title = "memory of a device", .y_label = "GB"};
  Series layers[] = {{"model states", {}}, {"activations", {}}, {"pools, buckets", {}}};
  for (std::size_t i = 0; i < std::min(options.show, advice.fitting.size()); ++i) {
    Candidate const& one = advice.fitting[i];
    chart.bars.push_back(one.setup.policies.stage + " " + std::to_string(one.setup.model_parallel) +
                         " " + one.setup.activations);
    auto const total = static_cast<double>(one.plan.total_bytes()) / 1e9;
    auto const states = static_cast<double>(one.plan.state_bytes()) / 1e9;
    auto const activations =
        static_cast<double>(one.plan.checkpoints.memory.total() + one.plan.working.total()) / 1e9;
    layers[0].points.emplace_back(0, states);
    layers[1].points.emplace_back(0, activations);
    layers[2].points.emplace_back(0, total - states - activations);
  }
  chart.series.assign(std::begin(layers), std::end(layers));
  if (!chart.bars.empty()) report.charts.push_back(std::move(chart));
  return report;
}

}  // namespace

void add_advise(CLI::App& app, Command& command) {
  auto const options = std::make_shared<AdviseOptions>();
  CLI::App* const sub =
      add_command(app,
                  command,
                  "advise",
                  "The fastest configuration that fits on a cluster, and why the others do not",
                  [options] { return make(*options); });
  add_model(*sub, *options);
  sub->add_option("--devices", options->devices, "How many")->check(CLI::Range(1, 100'000'000));
  add_cluster(*sub, options->cluster);
  add_memory_size(
      *sub, "--device-memory", options->device_memory, "Of a device (0: the cluster's)");
  options->reserved =
      add_memory_size(*sub,
                      "--reserve",
                      options->reserve,
                      "Of a device, kept for others and for what the estimate errs by (default: a "
                      "tenth)");
  sub->add_option("--sequences", options->sequences, "Of all models in a step (0: 8 a device)")
      ->check(CLI::Range(0, 1 << 30));
  sub->add_option("--by", options->by, "What is best: little time a step, or few bytes sent")
      ->check(CLI::IsMember({"bytes", "time"}));
  add_number(*sub, "--tokens", options->tokens, "Of the training, such as 2T: how long it takes");
  sub->add_option("--show", options->show, "Configurations at most")->check(CLI::Range(1, 1000));
  add_policies(*sub, *options);
}

}  // namespace plan
