#include "rows.hpp"

#include "fractions.hpp"
#include "plan/steps.hpp"

#include <cmath>

namespace plan {

namespace {

double misfit(std::vector<Row> const& rows,
              std::string const& cluster,
              DeviceFractions const& fractions) {
  double sum = 0.;
  for (Row const& row : rows) {
    if (!row.calibrates || row.cluster != cluster) continue;
    double const error = std::log(predict(row, fractions) / row.published);
    sum += error * error;
  }
  return sum;
}

}  // namespace

std::vector<Row> rows() {
  return {{"dgx-a100", "125m", 12, 768, 12, 2048, 8, 40, 2, false, 142830, true},
          {"dgx-a100", "13b", 40, 5120, 40, 2048, 8, 2, 3, false, 2262, true},
          {"dgx-a100", "1b", 24, 2048, 16, 2048, 8, 14, 4, false, 20513},
          {"dgx-a100", "30b", 48, 7168, 56, 2048, 8, 3, 21, true, 916},
          {"dgx-a100", "3b", 32, 2560, 20, 512, 8, 40, 6, false, 12127},
          {"dgx-a100", "70b", 80, 8192, 64, 2048, 32, 2, 16, true, 373, true},
          {"dgx-a100", "760m", 24, 1536, 12, 2048, 8, 24, 2, false, 32434},
          {"dgx-a100", "125m", 12, 768, 12, 8192, 8, 8, 2, false, 90392},
          {"dgx-a100", "13b", 40, 5120, 40, 8192, 8, 5, 3, true, 1795},
          {"dgx-a100", "30b", 48, 7168, 56, 4096, 8, 1, 21, true, 814},
          {"dgx-a100", "7b", 32, 4096, 32, 4096, 8, 16, 2, true, 3684},
          {"dgx-a100", "13b", 40, 5120, 40, 32768, 8, 1, 3, true, 1016},
          {"dgx-a100", "3b", 32, 2560, 20, 16384, 8, 1, 6, false, 5529},
          {"dgx-a100", "7b", 32, 4096, 32, 65536, 8, 1, 2, true, 1013, true},
          {"dgx-h100", "13b", 40, 5120, 40, 2048, 8, 2, 1, false, 4792, true},
          {"dgx-h100", "1b", 24, 2048, 16, 2048, 64, 20, 1, false, 44402},
          {"dgx-h100", "30b", 48, 7168, 56, 2048, 32, 14, 3, true, 2308},
          {"dgx-h100", "70b", 80, 8192, 64, 2048, 32, 2, 16, true, 882, true},
          {"dgx-h100", "760m", 24, 1536, 12, 2048, 8, 24, 2, false, 63147, true},
          {"dgx-h100", "7b", 32, 4096, 32, 2048, 8, 6, 1, false, 10643},
          {"dgx-h100", "30b", 48, 7168, 56, 4096, 8, 1, 21, true, 1802},
          {"dgx-h100", "7b", 32, 4096, 32, 8192, 8, 8, 2, true, 6935, true}};
}

DeviceFractions calibrate(std::vector<Row> const& rows, std::string const& cluster) {
  return best_fractions(DeviceFractions{0.7, 0.7, 0.4},
                        [&](DeviceFractions const& of) { return misfit(rows, cluster, of); });
}

Setup Row::setup() const {
  return {.model = {.layers = layers,
                    .hidden = hidden,
                    .heads = heads,
                    .vocab = 50368,
                    .sequence = sequence,
                    .biases = false,
                    .learned_positions = false,
                    .dropout = false},
          .ranks = ranks,
          .policies = {.stage = "pos+g+p", .accumulation = micro_steps > 1 ? "shard" : "none"},
          .activations = recomputed ? "whole" : "keep",
          .batch = batch,
          .micro_steps = micro_steps};
}

double predict(Row const& row, DeviceFractions const& fractions) {
  Cluster cluster = cluster_of(row.cluster);
  cluster.device.matrix_fraction = fractions[0];
  cluster.device.memory_fraction = fractions[1];
  cluster.device.attention_fraction = fractions[2];
  double const tokens = static_cast<double>(row.batch * row.micro_steps * row.sequence);
  return tokens / seconds_of_step(cluster, row.setup());
}

}  // namespace plan
