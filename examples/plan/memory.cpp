/// zero-plan memory: bytes of a device by role under all stages, and what fits.
#include "commands.hpp"
#include "model/paper_memory.hpp"
#include "setup_options.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

using zero::Role;

struct MemoryOptions : SetupOptions {
  std::string stage;         ///< empty: all
  std::uint64_t budget = 0;  ///< bytes of a device; 0: none is asked about
};

struct Planned {
  Setup setup;
  DevicePlan plan;
};

std::vector<Planned> plans_of(MemoryOptions const& options) {
  std::vector<Planned> all;
  for (std::string const& stage : stage_names()) {
    if (!options.stage.empty() && stage != options.stage) continue;
    Setup setup = options.complete();
    setup.policies.stage = stage;
    all.push_back({setup, plan_device(setup)});
  }
  return all;
}

std::vector<std::string> with_stages(std::string first, std::vector<Planned> const& all) {
  std::vector<std::string> columns{std::move(first)};
  for (Planned const& one : all) columns.push_back(one.setup.policies.stage);
  return columns;
}

/// The paper's formula for the model states, of each type that is trained.
std::uint64_t formula(Planned const& of) {
  zero::Plan const& plan = of.plan.optimizer;
  bool const alone = plan.types.size() == 1 || plan.types[1].frozen();
  std::uint64_t sum = 0;
  for (std::size_t k = 0; k < plan.types.size() && !plan.types[k].frozen(); ++k) {
    zero::StorageTypes const& types = plan.types[k];
    zero::ModelStates const states{.parameter = size_of(types.parameter),
                                   .gradient = size_of(types.wire),
                                   .optimizer = types.master_bytes() + types.state_bytes()};
    sum += model_state_bytes(alone ? plan.trained_elements : plan.kind_elements[k],
                             static_cast<std::uint64_t>(of.setup.models()),
                             plan.storage.sharding,
                             states)
               .whole;
  }
  return sum;
}

Table bytes_table(std::vector<Planned> const& all) {
  Table table{.name = "bytes",
              .title = "bytes per device",
              .columns = with_stages("role", all),
              .rows = {}};
  auto const add = [&](std::string const& name, auto const& figure) {
    std::vector<Cell> row{name};
    for (Planned const& one : all) row.emplace_back(figure(one));
    table.rows.push_back(std::move(row));
  };
  for (int r = 0; r < zero::role_count; ++r) {
    auto const role = static_cast<Role>(r);
    std::uint64_t most = 0;
    for (Planned const& one : all) most = std::max(most, one.plan.held()[role]);
    if (most == 0) continue;
    add(std::string(zero::name(role)), [&](Planned const& one) { return one.plan.held()[role]; });
  }
  add("working activations (estimate)",
      [](Planned const& one) { return one.plan.working.total(); });
  add("total", [](Planned const& one) { return one.plan.total_bytes(); });
  add("total, GB", [](Planned const& one) { return gigabytes(one.plan.total_bytes()); });
  add("model states", [](Planned const& one) { return one.plan.state_bytes(); });
  zero::Plan const& plan = all.front().plan.optimizer;
  bool const frozen = plan.frozen_elements + plan.whole_elements > 0;
  add(std::string("model states") + (frozen ? " of trained tensors" : "") + ", the paper's formula",
      formula);
  if (all.front().plan.checkpoints.slower.total() > 0) {
    add("in the host's memory",
        [](Planned const& one) { return one.plan.checkpoints.slower.total(); });
  }
  return table;
}

/// What fits into the budget, stage by stage.
Table fits_table(MemoryOptions const& options, std::vector<Planned> const& all) {
  Table table{.name = "fits",
              .title = "what fits into " + gigabytes(options.budget).text + " GB",
              .columns = {"stage", "this run", "largest batch", "parameters", "blocks", "hidden"},
              .rows = {}};
  for (Planned const& one : all) {
    bool const fits = one.plan.total_bytes() <= options.budget;
    Transformer const largest = options.exact() ? largest_depth(one.setup, options.budget)
                                                : largest_size(one.setup, options.budget);
    std::uint64_t const parameters =
        largest.layers > 0 ? plan::parameters(largest) : std::uint64_t{0};
    table.rows.push_back({one.setup.policies.stage,
                          {fits ? "fits" : "no", fits},
                          largest_batch(one.setup, options.budget),
                          {largest.layers > 0 ? billions(parameters) : "none", parameters},
                          static_cast<std::uint64_t>(largest.layers),
                          static_cast<std::uint64_t>(largest.hidden)});
  }
  return table;
}

Chart bars(std::vector<Planned> const& all) {
  Chart chart{.title = "memory of a device", .x_label = "stage", .y_label = "GB"};
  for (Planned const& one : all) chart.bars.push_back(one.setup.policies.stage);
  auto const add = [&](std::string const& title, auto const& figure) {
    Series layer{.title = title, .points = {}};
    double most = 0;
    for (Planned const& one : all) {
      double const value = static_cast<double>(figure(one)) / 1e9;
      layer.points.emplace_back(0, value);
      most = std::max(most, value);
    }
    if (most > 0) chart.series.push_back(std::move(layer));
  };
  for (int r = 0; r < zero::role_count; ++r) {
    auto const role = static_cast<Role>(r);
    add(std::string(zero::name(role)), [&](Planned const& one) { return one.plan.held()[role]; });
  }
  add("working (estimate)", [](Planned const& one) { return one.plan.working.total(); });
  return chart;
}

/// Memory, and the largest model, from one model up to as many as there are, and beyond.
std::vector<Chart> curves(MemoryOptions const& options, std::vector<Planned> const& all) {
  Chart memory{.title = "memory of a device",
               .x_label = "data-parallel degree N_d",
               .y_label = "GB",
               .log_x = true,
               .log_y = true};
  Chart largest{.title = "the largest model that fits",
                .x_label = "data-parallel degree N_d",
                .y_label = "billion parameters",
                .log_x = true,
                .log_y = true};
  for (Planned const& one : all) {
    Series held{.title = one.setup.policies.stage, .points = {}};
    Series fitting = held;
    for (int models = 1; models <= std::max(1024, one.setup.models()); models *= 2) {
      Setup setup = one.setup;
      setup.ranks = models * setup.model_parallel;
      held.points.emplace_back(models, static_cast<double>(plan_device(setup).total_bytes()) / 1e9);
      if (options.budget == 0) continue;
      Transformer const model = options.exact() ? largest_depth(setup, options.budget)
                                                : largest_size(setup, options.budget);
      if (model.layers == 0) continue;
      fitting.points.emplace_back(models, static_cast<double>(parameters(model)) / 1e9);
    }
    memory.series.push_back(std::move(held));
    if (!fitting.points.empty()) largest.series.push_back(std::move(fitting));
  }
  std::vector<Chart> charts{std::move(memory)};
  if (!largest.series.empty()) charts.push_back(std::move(largest));
  return charts;
}

Report make(MemoryOptions const& options, bool draws) {
  Progress const progress("planning memory");
  auto const all = plans_of(options);
  Report report;
  report.head = {sentence(all.front().setup.model), sentence(all.front().setup)};
  report.tables.push_back(bytes_table(all));
  if (options.budget > 0) report.tables.push_back(fits_table(options, all));
  report.notes = {estimate_note};
  if (!draws) return report;
  report.charts = curves(options, all);
  report.charts.insert(report.charts.begin(), bars(all));
  return report;
}

}  // namespace

void add_memory(CLI::App& app, Command& command) {
  auto const options = std::make_shared<MemoryOptions>();
  CLI::App* const sub = add_command(
      app,
      command,
      "memory",
      "Bytes of a device by role under all stages, and the largest model and batch that fit",
      [options, &command] { return make(*options, command.output.charts); });
  add_model(*sub, *options);
  add_types(*sub, *options);
  add_run(*sub, *options);
  add_policies(*sub, *options);
  sub->add_option("--stage", options->stage, "This one only")->check(CLI::IsMember(stage_names()));
  add_memory_size(
      *sub,
      "--budget",
      options->budget,
      "Of a device: find the largest batch, and the largest model (of the width that is given, "
      "or of any)");
}

}  // namespace plan
