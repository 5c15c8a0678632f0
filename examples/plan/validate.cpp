/// zero-plan validate: the paper's figures, predicted by a model that a few of their points set.
#include "commands.hpp"
#include "zero/simulate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

using namespace zero::planner;
using nlohmann::ordered_json;
namespace simulate = zero::simulate;

/// One bar or point: TFLOP/s of a device.
struct Point {
  std::string figure;
  std::string model;
  bool zero;  ///< Pos+g with partitioned checkpoints, or data parallelism with Megatron
  int ranks, model_parallel, layers;
  std::size_t hidden, heads;
  std::uint64_t batch;  ///< sequences of a model
  double published;
  bool calibrates = false;  ///< sets the model, and is no prediction

  [[nodiscard]] Setup setup() const {
    // More than one model rank per attention head, or widths that they do not divide, do not occur.
    return {.model = {.layers = layers, .hidden = hidden, .heads = heads},
            .ranks = ranks,
            .model_parallel = model_parallel,
            .policies = {.stage = zero ? "pos+g" : "replicated", .precision = "fp16"},
            .activations = zero && model_parallel > 1 ? "pa" : "whole",
            .batch = batch};
  }
};

/// Figures 2, 3 and 4, digitised from the pictures (about 0.3 TFLOP/s), with the shapes of the
/// SC'20 appendix. One point of each, and the baseline's of the largest model of the text, set the
/// four fractions of the model; the rest are predictions.
std::vector<Point> points() {
  return {{"2, ZeRO", "1.5B", true, 400, 1, 48, 1600, 16, 24, 30.3},
          {"2, ZeRO", "8B", true, 400, 4, 72, 3072, 24, 64, 36.9},
          {"2, ZeRO", "40B", true, 400, 4, 88, 6144, 32, 12, 36.0},
          {"2, ZeRO", "60B", true, 400, 16, 132, 6144, 32, 64, 36.5},
          {"2, ZeRO", "80B", true, 400, 16, 100, 8192, 64, 32, 37.5},
          {"2, ZeRO", "100B", true, 400, 16, 125, 8192, 64, 32, 38.7, true},
          {"2, ZeRO", "120B", true, 400, 16, 150, 8192, 64, 24, 28.1},
          {"2, ZeRO", "140B", true, 400, 16, 175, 8192, 64, 16, 27.0},
          {"2, ZeRO", "170B", true, 400, 16, 212, 8192, 64, 12, 20.9},
          {"2, baseline", "1.5B", false, 400, 2, 48, 1600, 16, 16, 26.0},
          {"2, baseline", "8B", false, 400, 8, 72, 3072, 24, 8, 23.2},
          {"2, baseline", "40B", false, 384, 32, 88, 6144, 64, 4, 4.9},
          {"2, baseline", "60B", false, 384, 64, 132, 6144, 64, 4, 6.3},
          {"2, baseline", "80B", false, 384, 128, 100, 8192, 128, 4, 5.2},
          {"2, baseline", "100B", false, 384, 128, 125, 8192, 128, 2, 3.8, true},
          {"2, baseline", "120B", false, 384, 128, 150, 8192, 128, 2, 3.8},
          {"2, baseline", "140B", false, 384, 128, 175, 8192, 128, 2, 3.9},
          {"2, baseline", "170B", false, 256, 256, 212, 8192, 256, 2, 2.2},
          {"3", "60B, 64 GPUs", true, 64, 16, 75, 8192, 32, 16, 25.5, true},
          {"3", "60B, 128 GPUs", true, 128, 16, 75, 8192, 32, 48, 37.5},
          {"3", "60B, 256 GPUs", true, 256, 16, 75, 8192, 32, 48, 39.0},
          {"3", "60B, 400 GPUs", true, 400, 16, 75, 8192, 32, 64, 36.5},
          {"4, ZeRO", "1.5B", true, 128, 1, 34, 1920, 16, 24, 40.1},
          {"4, ZeRO", "2.5B", true, 128, 1, 54, 1920, 16, 24, 41.5},
          {"4, ZeRO", "4B", true, 128, 1, 64, 2304, 24, 16, 43.3},
          {"4, ZeRO", "6B", true, 128, 1, 52, 3072, 24, 12, 46.7},
          {"4, ZeRO", "8B", true, 128, 1, 72, 3072, 24, 8, 46.7, true},
          {"4, ZeRO", "10B", true, 128, 1, 50, 4096, 32, 6, 40.8},
          {"4, ZeRO", "11B", true, 128, 1, 54, 4096, 32, 4, 35.4},
          {"4, ZeRO", "12B", true, 128, 1, 58, 4096, 32, 4, 32.6},
          {"4, ZeRO", "13B", true, 128, 1, 62, 4096, 32, 2, 21.0},
          {"4, DDP", "1.16B", false, 128, 1, 24, 1920, 16, 8, 39.4},
          {"4, DDP", "1.38B", false, 128, 1, 40, 1536, 16, 1, 18.1}};
}

/// What is set: of data sheets' rates, how much software reached.
using Fractions = std::array<double, 4>;
constexpr std::array<char const*, 4> fraction_names{
    "matrix products", "memory", "links inside a node", "links between nodes"};

Cluster cluster_with(Fractions const& fractions) {
  Cluster cluster = cluster_of("dgx2-v100");
  cluster.device.matrix_fraction = fractions[0];
  cluster.device.memory_fraction = fractions[1];
  cluster.inside.fraction = fractions[2];
  cluster.between.fraction = fractions[3];
  return cluster;
}

double predict(Point const& point, Fractions const& fractions) {
  simulate::World world(cluster_with(fractions));
  return simulate::steady_step(world, point.setup()).rate() / 1e12;
}

/// Squares of logarithmic errors of the points that calibrate.
double misfit(std::vector<Point> const& points, Fractions const& fractions) {
  double sum = 0.;
  for (Point const& point : points) {
    if (!point.calibrates) continue;
    double const error = std::log(predict(point, fractions) / point.published);
    sum += error * error;
  }
  return sum;
}

/// Walks along one fraction at a time, in ever smaller steps, as long as that is better. None
/// exceeds what data sheets say.
Fractions calibrate(std::vector<Point> const& points) {
  Fractions best{0.5, 0.8, 0.8, 0.5};
  double least = misfit(points, best);
  for (double step = 1.3; step > 1.002; step = std::sqrt(step)) {
    for (bool better = true; better;) {
      better = false;
      for (std::size_t i = 0; i < 2 * best.size(); ++i) {
        Fractions next = best;
        double& fraction = next[i / 2];
        fraction = std::min(1., i % 2 == 0 ? fraction * step : fraction / step);
        double const error = misfit(points, next);
        if (error >= least - 1e-12) continue;
        best = next;
        least = error;
        better = true;
      }
    }
  }
  return best;
}

/// Errors of the predictions of one figure.
struct Errors {
  double sum = 0.;
  double most = 0.;
  std::uint64_t count = 0;
};

Cell percent(double part, char const* format = "%+.1f %%") {
  char text[32];
  std::snprintf(text, sizeof(text), format, 100. * part);
  return {text, part};
}

Report make() {
  std::vector<Point> const all = points();
  Fractions const fractions = calibrate(all);
  Table table{.name = "points",
              .title = "TFLOP/s of a device",
              .columns = {"figure", "model", "published", "predicted", "error", "use"},
              .rows = {}};
  std::vector<std::pair<std::string, Errors>> errors;
  for (Point const& point : all) {
    double const predicted = predict(point, fractions);
    double const error = predicted / point.published - 1.;
    table.rows.push_back({point.figure,
                          point.model,
                          {fixed(point.published, 1), point.published},
                          {fixed(predicted, 1), predicted},
                          percent(error),
                          point.calibrates ? "calibrates" : "held out"});
    if (errors.empty() || errors.back().first != point.figure) errors.push_back({point.figure, {}});
    if (point.calibrates) continue;
    Errors& of = errors.back().second;
    of.sum += std::abs(error);
    of.most = std::max(of.most, std::abs(error));
    ++of.count;
  }
  Table summary{.name = "held_out",
                .title = "Errors of the points that are held out",
                .columns = {"figure", "points", "on average", "at most"},
                .rows = {}};
  for (auto const& [figure, of] : errors) {
    summary.rows.push_back({figure,
                            of.count,
                            percent(of.sum / static_cast<double>(of.count), "%.1f %%"),
                            percent(of.most, "%.1f %%")});
  }
  Table set{.name = "fractions",
            .title = "Set by the points that calibrate: of the data sheets' rates",
            .columns = {"of", "fraction"},
            .rows = {}};
  for (std::size_t i = 0; i < fractions.size(); ++i) {
    set.rows.push_back({fraction_names[i], {fixed(fractions[i], 3), fractions[i]}});
  }
  Report report;
  report.head = {"Figures 2, 3 and 4 of ZeRO (arXiv 1910.02054), on 25 DGX-2 nodes of 16 V100."};
  report.tables = {std::move(set), std::move(table), std::move(summary)};
  return report;
}

}  // namespace

void add_validate(CLI::App& app, Command& command) {
  add_command(app,
              command,
              "validate",
              "The paper's Figures 2, 3 and 4: four points set the model, the others test it",
              false,
              make);
}

}  // namespace plan
