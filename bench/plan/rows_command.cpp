/// validate-plan rows: published throughput on A100 and H100, predicted by a model that a few rows
/// set.
#include "fractions.hpp"
#include "plan/model/step.hpp"
#include "rows.hpp"
#include "validation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

/// The rows of one cluster.
std::vector<Row> rows_of(std::vector<Row> const& all, std::string const& cluster) {
  std::vector<Row> result;
  for (Row const& row : all) {
    if (row.cluster == cluster) result.push_back(row);
  }
  return result;
}

/// Of those that set nothing.
Errors errors_of(std::vector<Row> const& rows, DeviceFractions const& fractions) {
  Errors errors;
  for (Row const& row : rows) {
    if (!row.calibrates) errors.add(predict(row, fractions) / row.published - 1.);
  }
  return errors;
}

/// The model that knows nothing: the same part of the peak always, which the rows that calibrate
/// set.
double null_tokens(std::vector<Row> const& rows, Row const& row) {
  auto const operations_of_token = [](Row const& of) {
    Setup const setup = of.setup();
    return operations(setup).hardware / static_cast<double>(setup.tokens() * setup.micro_steps);
  };
  double sum = 0.;
  double count = 0.;
  for (Row const& of : rows) {
    if (!of.calibrates) continue;
    sum += std::log(of.published * operations_of_token(of));
    count += 1.;
  }
  return std::exp(sum / count) / operations_of_token(row);
}

/// Seconds of a step by what they are spent on, at some fractions. What is spent on a resource is
/// taken to go with its rate, so that other fractions need no simulation.
struct SplitRow {
  Row row;
  double tokens = 0.;
  double rest = 0.;
  DeviceFractions seconds{};
  static constexpr DeviceFractions at{0.6, 0.6, 0.35};

  explicit SplitRow(Row of) : row(std::move(of)) {
    tokens = static_cast<double>(row.batch * row.micro_steps * row.sequence);
    double const all = tokens / predict(row, at);
    rest = all;
    for (std::size_t i = 0; i < at.size(); ++i) {
      DeviceFractions slower = at;
      slower[i] /= 1.25;
      seconds[i] = (tokens / predict(row, slower) - all) * 4.;
      rest -= seconds[i];
    }
  }
  [[nodiscard]] double error(DeviceFractions const& fractions) const {
    double sum = rest;
    for (std::size_t i = 0; i < at.size(); ++i) sum += seconds[i] * at[i] / fractions[i];
    return tokens / sum / row.published - 1.;
  }
};

/// Errors, averaged, of rows where others, as many, calibrate; the median of random choices.
double median_of_random_choices(std::vector<Row> const& rows, int choices) {
  auto const count = std::ranges::count_if(rows, &Row::calibrates);
  std::vector<SplitRow> split(rows.begin(), rows.end());
  std::mt19937 random(20261125);
  std::vector<double> averages;
  for (int i = 0; i < choices; ++i) {
    std::ranges::shuffle(split, random);
    auto const held_out = split.begin() + count;
    DeviceFractions const best =
        best_fractions(DeviceFractions{0.7, 0.7, 0.4}, [&](DeviceFractions const& of) {
          double sum = 0.;
          for (auto row = split.begin(); row != held_out; ++row) {
            sum += std::pow(std::log1p(row->error(of)), 2.);
          }
          return sum;
        });
    Errors errors;
    for (auto row = held_out; row != split.end(); ++row) errors.add(row->error(best));
    averages.push_back(errors.average());
  }
  std::ranges::sort(averages);
  return averages[averages.size() / 2];
}

std::vector<Cell> error_cells(std::string cluster, std::string what, Errors const& of) {
  return {std::move(cluster),
          std::move(what),
          std::uint64_t{of.count},
          percent(of.average()),
          percent(of.mean(), true),
          percent(of.most)};
}

Report make(int choices) {
  Progress const progress("predicting rows");
  std::vector<Row> const all = rows();
  Table set{.name = "fractions",
            .title = "Set by the rows that calibrate: of the data sheets' rates",
            .columns = {"cluster", "matrix products", "memory", "fused attention"},
            .rows = {}};
  Table table{.name = "rows",
              .title = "Tokens a second of a device",
              .columns = {"row",
                          "cluster",
                          "model",
                          "sequence",
                          "devices",
                          "batch",
                          "recomputed",
                          "published",
                          "predicted",
                          "error",
                          "use"},
              .rows = {}};
  Table summary{.name = "held_out",
                .title = "Errors of the rows that are held out",
                .columns = {"cluster", "model", "rows", "on average", "bias", "at most"},
                .rows = {}};
  std::uint64_t number = 0;
  for (std::string const cluster : {"dgx-a100", "dgx-h100"}) {
    std::vector<Row> const here = rows_of(all, cluster);
    DeviceFractions const fractions = calibrate(here, cluster);
    std::vector<Cell> cells{cluster};
    for (double const of : fractions) cells.push_back({fixed(of, 3), of});
    set.rows.push_back(std::move(cells));
    Errors null;
    for (Row const& row : here) {
      double const predicted = predict(row, fractions);
      table.rows.push_back({++number,
                            row.cluster,
                            row.model,
                            std::uint64_t{row.sequence},
                            static_cast<std::uint64_t>(row.ranks),
                            row.batch,
                            row.recomputed ? "all" : "none",
                            {fixed(row.published, 0), row.published},
                            {fixed(predicted, 0), predicted},
                            percent(predicted / row.published - 1., true),
                            row.calibrates ? "calibrates" : "held out"});
      if (!row.calibrates) null.add(null_tokens(here, row) / row.published - 1.);
    }
    summary.rows.push_back(error_cells(cluster, "this one", errors_of(here, fractions)));
    summary.rows.push_back(error_cells(cluster, "one part of the peak for all", null));
    double const median = median_of_random_choices(here, choices);
    summary.rows.push_back({cluster,
                            "this one, other rows calibrate: median of " + std::to_string(choices),
                            std::uint64_t{null.count},
                            percent(median),
                            "",
                            ""});
  }
  Report report;
  report.head = {"PyTorch FSDP on A100 and H100, as mosaicml/llm-foundry has published it."};
  report.tables = {std::move(set), std::move(table), std::move(summary)};
  report.notes = {
      "Which rows calibrate follows a rule: of each cluster the largest model with and without "
      "recomputation,",
      "the longest sequence with it, and the smallest model. Other choices are judged without "
      "further "
      "simulations:",
      "what a step spends on a resource is taken to go with its rate."};
  return report;
}

}  // namespace

void add_rows(CLI::App& app, Command& command) {
  auto const choices = std::make_shared<int>(24);
  CLI::App* const sub =
      add_command(app,
                  command,
                  "rows",
                  "Published throughput on A100 and H100, of which a few rows set the model",
                  [choices] { return make(*choices); });
  sub->add_option("--choices", *choices, "Random choices of rows that calibrate")
      ->check(CLI::Range(1, 1000));
}

}  // namespace plan
