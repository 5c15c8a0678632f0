/// validate-plan figures: the paper's figures, predicted by a model that a few of their points set.
#include "figures.hpp"
#include "validation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

/// Errors of the predictions of one figure.
struct Errors {
  double sum = 0.;
  double most = 0.;
  std::uint64_t count = 0;
};

Report make(std::vector<std::size_t> const& calibrating) {
  std::vector<Point> all = points();
  for (std::size_t i = 0; !calibrating.empty() && i < all.size(); ++i) {
    all[i].calibrates = std::ranges::find(calibrating, i + 1) != calibrating.end();
  }
  Fractions const fractions = calibrate(all);
  Table table{.name = "points",
              .title = "TFLOP/s of a device",
              .columns = {"point", "figure", "model", "published", "predicted", "error", "use"},
              .rows = {}};
  std::vector<std::pair<std::string, Errors>> errors;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Point const& point = all[i];
    double const predicted = predict(point, fractions);
    double const error = predicted / point.published - 1.;
    table.rows.push_back({std::uint64_t{i + 1},
                          point.figure,
                          point.model,
                          {fixed(point.published, 1), point.published},
                          {fixed(predicted, 1), predicted},
                          percent(error, true),
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
    summary.rows.push_back(
        {figure, of.count, percent(of.sum / static_cast<double>(of.count)), percent(of.most)});
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

void add_figures(CLI::App& app, Command& command) {
  auto const calibrating = std::make_shared<std::vector<std::size_t>>();
  CLI::App* const sub =
      add_command(app,
                  command,
                  "figures",
                  "The paper's Figures 2, 3 and 4, of which four points set the model",
                  [calibrating] { return make(*calibrating); });
  sub->add_option(
         "--calibrate", *calibrating, "Numbers of other points of the figures that set the model")
      ->delimiter(',')
      ->check(CLI::Range(std::size_t{1}, points().size()));
}

}  // namespace plan
