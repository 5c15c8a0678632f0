/// zero-plan traffic: what a rank sends in a step, by operation, under all stages.
#include "commands.hpp"
#include "setup_options.hpp"
#include "zero/comm/shared/node_bytes.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

/// One operation: what it is called, and what it sends.
struct Operation {
  std::string name;
  std::uint64_t (*elements)(DevicePlan const&);
  std::uint64_t (*bytes)(DevicePlan const&);
};

/// @param frozen  are there frozen tensors?
std::vector<Operation> all_operations(bool frozen) {
  std::vector<Operation> all{{"reduce gradients",
                              [](DevicePlan const& p) { return p.optimizer.traffic.reduce; },
                              [](DevicePlan const& p) { return p.optimizer.sent.reduce; }},
                             {"publish parameters",
                              [](DevicePlan const& p) { return p.optimizer.traffic.publish; },
                              [](DevicePlan const& p) { return p.optimizer.sent.publish; }},
                             {"gather parameters",
                              [](DevicePlan const& p) { return p.optimizer.traffic.gather; },
                              [](DevicePlan const& p) { return p.optimizer.sent.gather; }}};
  if (frozen) {
    all.push_back({"gather frozen parameters",
                   [](DevicePlan const& p) { return p.optimizer.traffic.frozen; },
                   [](DevicePlan const& p) { return p.optimizer.sent.frozen; }});
  }
  all.push_back({"all-reduce activations (formula)",
                 [](DevicePlan const& p) { return p.model_elements; },
                 [](DevicePlan const& p) { return p.model_bytes; }});
  all.push_back({"gather checkpoints",
                 [](DevicePlan const& p) { return p.checkpoint_elements; },
                 [](DevicePlan const& p) { return p.checkpoint_bytes; }});
  return all;
}

std::vector<std::string> columns(std::string first) {
  std::vector<std::string> names = stage_names();
  names.insert(names.begin(), std::move(first));
  return names;
}

std::vector<DevicePlan> plans_of(Setup setup) {
  std::vector<DevicePlan> plans;
  for (std::string const& stage : stage_names()) {
    setup.policies.stage = stage;
    plans.push_back(plan_device(setup));
  }
  return plans;
}

/// Bytes under each stage, for each value of another policy.
template <class Choose>
Table compare(std::string const& name,
              std::string const& title,
              Setup setup,
              std::vector<std::string> const& values,
              Choose const& choose) {
  Table table{.name = name, .title = title, .columns = columns(name), .rows = {}};
  for (std::string const& value : values) {
    choose(setup, value);
    std::vector<Cell> row{value};
    for (DevicePlan const& plan : plans_of(setup)) row.emplace_back(plan.sent_bytes());
    table.rows.push_back(std::move(row));
  }
  return table;
}

std::vector<Chart> charts(Setup setup, std::vector<DevicePlan> const& plans) {
  Chart bars{.title = "sent by a rank in a step",
             .x_label = "stage",
             .y_label = "GB",
             .bars = stage_names()};
  for (Operation const& operation : all_operations(setup.model.adapters > 0)) {
    Series layer{.title = operation.name, .points = {}};
    for (DevicePlan const& plan : plans) {
      layer.points.emplace_back(0, static_cast<double>(operation.bytes(plan)) / 1e9);
    }
    bars.series.push_back(std::move(layer));
  }
  Chart curves{.title = "sent by a rank in a step",
               .x_label = "data-parallel degree N_d",
               .y_label = "GB",
               .log_x = true};
  for (std::string const& stage : stage_names()) {
    Series curve{.title = stage, .points = {}};
    int const most = std::max(1024, setup.models());
    Setup at = setup;
    at.policies.stage = stage;
    for (int models = 1; models <= most; models *= 2) {
      at.ranks = models * setup.model_parallel;
      curve.points.emplace_back(models, static_cast<double>(plan_device(at).sent_bytes()) / 1e9);
    }
    curves.series.push_back(std::move(curve));
  }
  return {bars, curves};
}

/// What a node sends to others over zero::Mpi, whose gathers go to every node once. Bytes are
/// proportional to the elements of blocks, so that all buckets count as one.
Table nodes(Setup const& setup, std::vector<DevicePlan> const& plans, int per_node) {
  int const groups = setup.model_parallel;
  if (per_node % groups != 0 || setup.ranks % per_node != 0) {
    zero::fail(zero::ErrorKind::invalid_argument,
               {"nodes of ",
                per_node,
                " ranks do not divide ",
                setup.ranks,
                " ranks of models of ",
                groups});
  }
  Table table{.name = "nodes",
              .title = "bytes that a node of " + std::to_string(per_node) +
                       (per_node == 1 ? " rank" : " ranks") +
                       " sends to others in a step over zero::Mpi",
              .columns = columns("operation"),
              .rows = {{"sums, flat"},
                       {"sums, chained (not the last node)"},
                       {"sums, chained, the last node"},
                       {"gathers"}}};
  auto const N = static_cast<std::uint64_t>(setup.models());
  for (DevicePlan const& plan : plans) {
    auto const& sent_each = plan.optimizer.sent;
    std::uint64_t const wire = size_of(plan.optimizer.types.front().wire);
    auto const blocks = [&](std::uint64_t sent) {
      auto const here = static_cast<std::uint64_t>(per_node / groups);
      return zero::detail::NodeBlocks{.ranks = N,
                                      .here = here,
                                      .nodes = N / here,
                                      .count = N > 1 ? sent / (N - 1) / wire : 0,
                                      .element = wire};
    };
    auto const sums = blocks(sent_each.reduce);
    auto const gathers = blocks(sent_each.publish + sent_each.gather + sent_each.frozen);
    auto const times = static_cast<std::uint64_t>(groups);
    std::uint64_t const sent[] = {
        sums.flat(), sums.chained(), sums.chained(true), gathers.relayed()};
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
      table.rows[i].emplace_back(zero::checked_mul(sent[i], times));
    }
  }
  return table;
}

/// The way that sums of a whole bucket take over zero::Mpi unless one is named.
std::string automatic(Setup const& setup, DevicePlan const& plan, int per_node) {
  auto const N = static_cast<std::uint64_t>(setup.models());
  auto const here = static_cast<std::uint64_t>(per_node / setup.model_parallel);
  std::uint64_t const element = size_of(plan.optimizer.types.front().wire);
  zero::detail::NodeBlocks const bucket{.ranks = N,
                                        .here = here,
                                        .nodes = N / here,
                                        .count = setup.bucket.bytes / element / N,
                                        .element = element};
  return std::string("'automatic' sums are ") +
         (bucket.chain_pays(bucket.flat()) ? "chained" : "flat") + " for buckets of " +
         zero::detail::with_commas(setup.bucket.bytes) + " bytes. 'sums' says more.";
}

Report make(SetupOptions const& options, int per_node, bool draws) {
  Progress const progress("planning traffic");
  Setup const setup = options.complete();
  auto const plans = plans_of(setup);
  Report report;
  report.head = {sentence(setup.model), sentence(setup)};
  auto const operations = all_operations(setup.model.adapters > 0);
  for (bool const in_bytes : {false, true}) {
    Table table{.name = in_bytes ? "bytes" : "elements",
                .title = std::string(in_bytes ? "bytes" : "elements") + " sent per rank and step",
                .columns = columns("operation"),
                .rows = {}};
    std::vector<Cell> total{"total"};
    for (DevicePlan const& plan : plans) {
      total.emplace_back(in_bytes ? plan.sent_bytes()
                                  : plan.optimizer.traffic.total() + plan.model_elements +
                                        plan.checkpoint_elements);
    }
    for (Operation const& operation : operations) {
      std::vector<Cell> row{operation.name};
      for (DevicePlan const& plan : plans) {
        row.emplace_back((in_bytes ? operation.bytes : operation.elements)(plan));
      }
      table.rows.push_back(std::move(row));
    }
    table.rows.push_back(std::move(total));
    if (in_bytes && plans.front().slower_bytes > 0) {
      std::vector<Cell> row{"to and from the host"};
      for (DevicePlan const& plan : plans) row.emplace_back(plan.slower_bytes);
      table.rows.push_back(std::move(row));
    }
    report.tables.push_back(std::move(table));
  }
  if (per_node > 0) report.tables.push_back(nodes(setup, plans, per_node));
  std::vector<Cell> ratio{"optimizer's elements over parameters"};
  for (DevicePlan const& plan : plans) {
    std::uint64_t const all = plan.optimizer.trained_elements + plan.optimizer.frozen_elements;
    double const times =
        static_cast<double>(plan.optimizer.traffic.total()) / static_cast<double>(all);
    ratio.push_back({fixed(times, 3), times});
  }
  report.tables.front().rows.push_back(std::move(ratio));
  if (setup.micro_steps > 1) {
    report.tables.push_back(
        compare("accumulation",
                "bytes by where micro-steps add up",
                setup,
                {"full", "shard"},
                [](Setup& of, std::string const& value) { of.policies.accumulation = value; }));
  }
  if (setup.model_parallel > 1) {
    report.tables.push_back(
        compare("checkpoint",
                "bytes by what is kept of activations",
                setup,
                activation_names(),
                [](Setup& of, std::string const& value) { of.activations = value; }));
  }
  report.notes = {
      "Padding is included. N ranks send (N-1)/N of what the paper counts: 2 of the parameters' "
      "number a step,\n3 where parameters are partitioned (7.2).",
      "The all-reduces are the model's own, by the paper's formula (8): 6 of b s h elements a "
      "block, 4 without\nrecomputation, each sent twice."};
  if (setup.model.tied) {
    report.notes.emplace_back(
        "The embedding is the head, too. Where parameters are partitioned both units gather it, so "
        "that it\ncounts twice.");
  }
  if (per_node > 0) report.notes.push_back(automatic(setup, plans.front(), per_node));
  if (draws) report.charts = charts(setup, plans);
  return report;
}

}  // namespace

void add_traffic(CLI::App& app, Command& command) {
  auto const options = std::make_shared<SetupOptions>();
  auto const per_node = std::make_shared<int>(0);
  CLI::App* const sub = add_command(
      app,
      command,
      "traffic",
      "Elements and bytes that a rank sends in a step, by operation, under all stages",
      [options, per_node, &command] { return make(*options, *per_node, command.output.charts); });
  add_model(*sub, *options);
  add_types(*sub, *options);
  add_run(*sub, *options);
  add_policies(*sub, *options);
  sub->add_option("--ranks-per-node", *per_node, "What a node sends, too, over zero::Mpi")
      ->check(CLI::Range(1, 1024));
}

}  // namespace plan
