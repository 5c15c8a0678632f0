/// zero-plan sums: what sums over nodes send and take, by the ways that zero::Mpi has for them.
#include "commands.hpp"
#include "files.hpp"
#include "model/over_mpi.hpp"
#include "setup_options.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

using zero::Op;
namespace simulate = plan::simulate;

struct SumsOptions {
  std::string cluster = "dgx-h100";
  int per_node = 8;
  std::vector<int> nodes{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
  std::string dtype = "bf16";
  std::string accumulate = "fp32";
  std::uint64_t elements = 12 * zero::MiB + zero::MiB / 2;
};

std::uint64_t size_of(std::string const& dtype) {
  return dtype == "fp32" ? 4 : dtype == "fp64" ? 8 : 2;
}

/// A sum of all elements, as a bucket: whole blocks of 512 for each rank.
struct Sum {
  simulate::Placement placement;
  zero::detail::NodeBlocks blocks;
};

Sum sum_of(SumsOptions const& options, int nodes) {
  Sum sum{.placement = {.size = nodes * options.per_node, .per_node = options.per_node},
          .blocks = {}};
  auto const quantum = 512 * static_cast<std::uint64_t>(sum.placement.size);
  sum.blocks = node_blocks(sum.placement,
                           512 * zero::ceil_div(options.elements, quantum),
                           size_of(options.dtype),
                           size_of(options.accumulate));
  return sum;
}

CollectiveCost cost(Cluster const& cluster, Sum const& sum, Sums way) {
  return cost_over_mpi(cluster,
                       sum.placement,
                       Op::reduce_scatter,
                       sum.blocks.count,
                       sum.blocks.element,
                       sum.blocks.accumulate,
                       way);
}

char const* chosen(Sum const& sum) {
  return sum.blocks.chain_pays(sum.blocks.flat()) ? "chained" : "flat";
}

Table bytes(SumsOptions const& options) {
  Table table{.name = "bytes",
              .title = "Bytes that a node sends to others",
              .columns = {"nodes",
                          "ranks",
                          "elements of a block",
                          "flat",
                          "chained",
                          "chained, the last node",
                          "automatic",
                          "flat over chained"},
              .rows = {}};
  for (int const nodes : options.nodes) {
    Sum const sum = sum_of(options, nodes);
    auto const& of = sum.blocks;
    double const ratio = static_cast<double>(of.flat()) / static_cast<double>(of.chained());
    table.rows.push_back({of.nodes,
                          of.ranks,
                          of.count,
                          of.flat(),
                          of.chained(),
                          of.chained(true),
                          chosen(sum),
                          {fixed(ratio, 2), ratio}});
  }
  return table;
}

Table times(SumsOptions const& options, Cluster const& cluster) {
  Table table{
      .name = "times",
      .title =
          "Time of the sum on " + cluster.name + ", which has not been validated against real runs",
      .columns =
          {"nodes", "flat", "chained", "of it, latency", "automatic", "fastest in rank order"},
      .rows = {}};
  for (int const nodes : options.nodes) {
    Sum const sum = sum_of(options, nodes);
    auto const flat = cost(cluster, sum, Sums::flat);
    auto const chained = cost(cluster, sum, Sums::chained);
    table.rows.push_back({sum.blocks.nodes,
                          rough_duration(flat.seconds()),
                          rough_duration(chained.seconds()),
                          percent(chained.latency / chained.seconds()),
                          chosen(sum),
                          chained.seconds() < flat.seconds() ? "chained" : "flat"});
  }
  return table;
}

Chart chart(SumsOptions const& options) {
  Chart chart{.title = "sent by a node for a sum of " +
                       zero::detail::with_commas(options.elements) + " elements",
              .x_label = "nodes",
              .y_label = "MB",
              .log_x = true};
  chart.series = {{"flat", {}}, {"chained", {}}};
  for (int const nodes : options.nodes) {
    auto const of = sum_of(options, nodes).blocks;
    std::uint64_t const sent[] = {of.flat(), of.chained()};
    for (std::size_t i = 0; i < 2; ++i) {
      chart.series[i].points.emplace_back(nodes, static_cast<double>(sent[i]) / 1e6);
    }
  }
  return chart;
}

/// From how many nodes on hops take longer than what a chain saves.
std::string turning(SumsOptions const& options, Cluster const& cluster) {
  for (int const nodes : options.nodes) {
    Sum const sum = sum_of(options, nodes);
    double const flat = cost(cluster, sum, Sums::flat).seconds();
    if (!sum.blocks.chain_pays(sum.blocks.flat()) ||
        cost(cluster, sum, Sums::chained).seconds() < flat) {
      continue;
    }
    return "On " + std::to_string(nodes) + " nodes the hops of a chain take longer than what it " +
           "saves: there 'automatic' still sends less\nand waits longer, unless other buckets "
           "are " +
           "under way meanwhile.";
  }
  return "On none of these does a chain that 'automatic' takes last longer than a flat sum.";
}

Report make(SumsOptions const& options) {
  Cluster const cluster = named_cluster(options.cluster);
  Report report;
  report.head = {"A reduce-scatter of " + zero::detail::with_commas(options.elements) +
                 " elements in " + options.dtype + ", added in " + options.accumulate + ", with " +
                 std::to_string(options.per_node) + (options.per_node == 1 ? " rank" : " ranks") +
                 " to a node, over zero::Mpi."};
  report.tables = {bytes(options), times(options, cluster)};
  report.charts = {chart(options)};
  report.notes = {
      "Blocks are whole multiples of 512 elements, one for each rank. Flat and chained sums have "
      "the same bits:\nthose of rank order. Partial sums travel in " +
          options.accumulate + ", all else in " + options.dtype + ".",
      "Automatic takes the chain for blocks above 2 KiB where that saves more bytes than a fast "
      "network carries\nduring its hops; Options::sums of the communicator takes another. What a "
      "message costs a processor is not\ncounted.",
      turning(options, cluster)};
  return report;
}

}  // namespace

void add_sums(CLI::App& app, Command& command) {
  auto const options = std::make_shared<SumsOptions>();
  CLI::App* const sub =
      add_command(app, command, "sums", "Sums over nodes by zero::Mpi: flat, chained", [options] {
        return make(*options);
      });
  add_cluster(*sub, options->cluster);
  sub->add_option("--ranks-per-node", options->per_node, "Ranks of the group on each node")
      ->check(CLI::Range(1, 1024));
  sub->add_option("--nodes", options->nodes, "Such as 2,4,1024")
      ->delimiter(',')
      ->check(CLI::Range(2, 1'000'000));
  sub->add_option("--dtype", options->dtype, "Of what is added")
      ->check(CLI::IsMember({"fp32", "fp64", "bf16", "fp16"}));
  sub->add_option("--accumulate", options->accumulate, "In which it adds up")
      ->check(CLI::IsMember({"fp32", "fp64"}));
  sub->add_option("--elements", options->elements, "All blocks together, before padding")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000'000'000}));
}

}  // namespace plan
