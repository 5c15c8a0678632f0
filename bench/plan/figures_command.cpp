/// validate-plan figures: the paper's figures, predicted by a model that a few of their points set.
#include "figures.hpp"
#include "fractions.hpp"
#include "validation.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

/// Errors of one figure: of this model, of one constant, and of the same model where others of its
/// points set it.
struct FigureErrors {
  std::string figure;
  Errors model{};
  Errors constant{};
  std::vector<double> others{};  ///< averages, of a random choice each
};

FigureErrors& of_figure(std::vector<FigureErrors>& all, std::string const& figure) {
  auto const found = std::ranges::find(all, figure, &FigureErrors::figure);
  return found != all.end() ? *found : all.emplace_back(FigureErrors{.figure = figure});
}

/// What a model that knows nothing says of all points: the mean of those that calibrate.
double constant(std::vector<Point> const& all) {
  double sum = 0.;
  double count = 0.;
  for (Point const& point : all) {
    if (!point.calibrates) continue;
    sum += std::log(point.published);
    count += 1.;
  }
  return std::exp(sum / count);
}

/// Adds what is left of errors where as many points at random calibrate.
void add_random_choices(std::vector<Point> all, int choices, std::vector<FigureErrors>& errors) {
  auto const count = std::ranges::count_if(all, &Point::calibrates);
  std::mt19937 random(20261125);
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int i = 0; i < choices; ++i) {
    std::ranges::shuffle(order, random);
    for (std::size_t p = 0; p < order.size(); ++p) {
      all[order[p]].calibrates = p < static_cast<std::size_t>(count);
    }
    Fractions const fractions = calibrate(all, 1.03);
    std::vector<FigureErrors> here;
    for (Point const& point : all) {
      if (point.calibrates) continue;
      of_figure(here, point.figure).model.add(predict(point, fractions) / point.published - 1.);
    }
    for (FigureErrors const& of : here) {
      of_figure(errors, of.figure).others.push_back(of.model.average());
    }
  }
}

Report make(std::vector<std::size_t> const& calibrating, int choices) {
  Progress const progress("predicting points");
  std::vector<Point> all = points();
  for (std::size_t i = 0; !calibrating.empty() && i < all.size(); ++i) {
    all[i].calibrates = std::ranges::find(calibrating, i + 1) != calibrating.end();
  }
  Fractions const fractions = calibrate(all);
  Table table{.name = "points",
              .title = "TFLOP/s of a device",
              .columns = {"point", "figure", "model", "published", "predicted", "error", "use"},
              .rows = {}};
  std::vector<FigureErrors> errors;
  double const same = constant(all);
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
    if (point.calibrates) continue;
    of_figure(errors, point.figure).model.add(error);
    of_figure(errors, point.figure).constant.add(same / point.published - 1.);
  }
  if (choices > 0) add_random_choices(all, choices, errors);
  Table summary{
      .name = "held_out",
      .title = "Errors of the points that are held out",
      .columns =
          {"figure", "points", "on average", "at most", "one constant", "other points calibrate"},
      .rows = {}};
  for (FigureErrors& of : errors) {
    std::ranges::sort(of.others);
    summary.rows.push_back(
        {of.figure,
         std::uint64_t{of.model.count},
         percent(of.model.average()),
         percent(of.model.most),
         percent(of.constant.average()),
         of.others.empty() ? Cell("not tried") : percent(of.others[of.others.size() / 2])});
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
  report.notes = {
      "One constant: all points are the mean of those that calibrate. Other points calibrate: the "
      "median of",
      std::to_string(choices) + " random choices of as many points (--choices)."};
  return report;
}

}  // namespace

void add_figures(CLI::App& app, Command& command) {
  auto const calibrating = std::make_shared<std::vector<std::size_t>>();
  auto const choices = std::make_shared<int>(0);
  CLI::App* const sub =
      add_command(app,
                  command,
                  "figures",
                  "The paper's Figures 2, 3 and 4, of which four points set the model",
                  [=] { return make(*calibrating, *choices); });
  sub->add_option(
         "--calibrate", *calibrating, "Numbers of other points of the figures that set the model")
      ->delimiter(',')
      ->check(CLI::Range(std::size_t{1}, points().size()));
  sub->add_option("--choices", *choices, "Random choices of points that calibrate")
      ->check(CLI::Range(0, 1000));
}

}  // namespace plan
