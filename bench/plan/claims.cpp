/// zero-plan claims: what the paper says of itself, and what comes out here.
#include "figures.hpp"
#include "plan/model.hpp"
#include "validation.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace plan {

namespace {

constexpr std::uint64_t v100 = 32'000'000'000;

std::string gb(std::uint64_t bytes) { return gigabytes(bytes, 1).text + " GB"; }

/// With whether that fits.
std::string judged(std::uint64_t bytes) {
  return gb(bytes) + (bytes <= v100 ? ": fits 32 GB" : ": does not fit 32 GB");
}

/// A trillion parameters on 1024 devices; each block is a unit.
Setup trillion(int model_parallel) {
  return {.model = transformer_of(1e12),
          .ranks = 1024,
          .model_parallel = model_parallel,
          .policies = {.stage = "pos+g+p", .precision = "fp16"},
          .activations = model_parallel > 1 ? "pa" : "whole",
          .attention = "plain",
          .batch = 1};
}

/// The most blocks of width 8192 that 400 devices of 32 GB hold, with as many sequences as the
/// paper had.
std::uint64_t largest(std::string const& stage, std::string const& activations) {
  Setup const setup{.model = {.layers = 1, .hidden = 8192, .heads = 64},
                    .ranks = 400,
                    .model_parallel = 16,
                    .policies = {.stage = stage, .precision = "fp16"},
                    .activations = activations,
                    .attention = "plain",
                    .batch = 12};
  return parameters(largest_depth(setup, v100));
}

Point const& point(std::vector<Point> const& all, std::string_view figure, int which) {
  auto const first = std::ranges::find(all, figure, &Point::figure);
  return *(first + which);
}

Table claims(std::vector<Point> const& all, Fractions const& fractions) {
  Table table{.name = "claims",
              .title = "The paper's claims",
              .columns = {"claim", "paper", "here"},
              .rows = {}};
  auto const add = [&](char const* claim, char const* paper, std::string const& here) {
    table.rows.push_back({claim, paper, here});
  };
  DevicePlan const whole = plan_device(trillion(1));
  add("1 T fits on 1024 devices, Pos+g+p", "15.6 GB of states", gb(whole.state_bytes()));
  add("... with pools and buckets", "-", judged(whole.total_bytes()));
  add("... of models of 16 ranks, Pa", "-", judged(plan_device(trillion(16)).total_bytes()));

  Setup const thirteen = point(all, "4, ZeRO", 8).setup();
  Setup alone = thirteen;
  alone.policies.stage = "replicated";
  alone.model = largest_depth(alone, v100);
  add("13 B without model parallelism", "fits 32 GB", judged(plan_device(thirteen).total_bytes()));
  add("... data parallelism alone",
      "1.4 B at most",
      billions(parameters(alone.model)) + " of that width at most");

  std::uint64_t const before = largest("replicated", "whole");
  std::uint64_t const after = largest("pos+g", "pa+cpu");
  add("8 times larger models, 400 devices",
      "20 B to 170 B",
      billions(before) + " to " + billions(after) + ": " +
          fixed(static_cast<double>(after) / static_cast<double>(before), 1) + " times");

  double gain = 0.;
  std::string at;
  for (int i = 0; i < 9; ++i) {
    double const ratio = predict(point(all, "2, ZeRO", i), fractions) /
                         predict(point(all, "2, baseline", i), fractions);
    if (ratio > gain) at = point(all, "2, ZeRO", i).model;
    gain = std::max(gain, ratio);
  }
  add("up to 10 times faster", "10.3 at 100B", fixed(gain, 1) + " at " + at);
  return table;
}

/// Figure 3: what memory is freed for, and what that does.
Table growth(std::vector<Point> const& all, Fractions const& fractions) {
  Table table{
      .name = "growth",
      .title = "60 B from 64 to 400 devices: freed memory, larger batches, more than linear",
      .columns = {"devices",
                  "GB of states",
                  "largest batch here",
                  "paper's batch",
                  "PFLOP/s, linear",
                  "published",
                  "predicted"},
      .rows = {}};
  double linear = 0.;
  for (int i = 0; i < 4; ++i) {
    Point const& of = point(all, "3", i);
    Setup const setup = of.setup();
    double const devices = of.ranks;
    double const predicted = predict(of, fractions) * devices / 1e3;
    if (i == 0) linear = predicted / devices;
    table.rows.push_back({static_cast<std::uint64_t>(of.ranks),
                          gigabytes(plan_device(setup).state_bytes(), 1),
                          largest_batch(setup, v100),
                          of.batch,
                          {fixed(linear * devices, 2), linear * devices},
                          {fixed(of.published * devices / 1e3, 2), of.published * devices / 1e3},
                          {fixed(predicted, 2), predicted}});
  }
  return table;
}

/// What a trillion parameters need beside their states where a bucket has 512 elements for each
/// rank: by the number of ranks, and with units of several blocks.
Table scale() {
  Table table{.name = "scale",
              .title = "1 T, Pos+g+p, by ranks: what buckets of 512 elements for each force",
              .columns = {"ranks",
                          "GB of states",
                          "MB of the smallest bucket",
                          "padding",
                          "GB of pools",
                          "padding, 4 blocks a unit",
                          "GB of pools, likewise",
                          "padding in groups of 1,000",
                          "GB of states, likewise"},
              .rows = {}};
  PolicyNames const policies{.stage = "pos+g+p", .precision = "fp16"};
  auto const planned = [&](int ranks, int blocks) {
    auto tensors = describe(transformer_of(1e12));
    // The first unit is the embedding.
    for (zero::Tensor& tensor : tensors) tensor.unit = (tensor.unit + blocks - 1) / blocks;
    return plan_of(policies, {.world_size = ranks}, tensors);
  };
  auto const padding = [](zero::Plan const& plan) {
    double const part =
        static_cast<double>(plan.padding_elements) / static_cast<double>(plan.trained_elements);
    return Cell{fixed(100. * part, 2) + " %", part};
  };
  auto const states = [](zero::Plan const& plan) {
    return gigabytes(DevicePlan{.optimizer = plan}.state_bytes(), 3);
  };
  auto const pools = [](zero::Plan const& plan) {
    return gigabytes(plan.memory[zero::Role::gather_pool] + plan.memory[zero::Role::gradient_pool],
                     1);
  };
  for (int const ranks : {100, 1'000, 10'000, 100'000, 1'000'000}) {
    zero::Plan const one = planned(ranks, 1);
    zero::Plan const four = planned(ranks, 4);
    zero::Plan const group = planned(std::min(ranks, 1'000), 1);
    std::uint64_t const smallest = 512 * static_cast<std::uint64_t>(ranks) * 2;
    table.rows.push_back({static_cast<std::uint64_t>(ranks),
                          states(one),
                          {fixed(static_cast<double>(smallest) / 1e6, 1), smallest},
                          padding(one),
                          pools(one),
                          padding(four),
                          pools(four),
                          padding(group),
                          states(group)});
  }
  return table;
}

Report make() {
  std::vector<Point> const all = points();
  Fractions const fractions = calibrate(all);
  Report report;
  report.tables = {claims(all, fractions), growth(all, fractions), scale()};
  return report;
}

}  // namespace

void add_claims(CLI::App& app, Command& command) {
  add_command(app,
              command,
              "claims",
              "The paper's claims: sizes, speed, growth; and what comes out here",
              [] { return make(); });
}

}  // namespace plan
