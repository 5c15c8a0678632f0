/// @file
/// What is worth a picture, as data in a program's JSON; bench/plot.py draws it.
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <utility>
#include <vector>

namespace plan {

/// One curve, or one layer of stacked bars.
struct Series {
  std::string title{};                              ///< in the key
  std::vector<std::pair<double, double>> points{};  ///< x and y; of bars, y alone counts
};

/// One picture of several, below each other.
struct Chart {
  std::string title{};              ///< above it
  std::string x_label{};            ///< what x is
  std::string y_label{};            ///< what y is
  bool log_x = false;               ///< powers of two are equally far apart
  bool log_y = false;               ///< powers of ten are
  std::vector<std::string> bars{};  ///< names of bars, in which series are stacked; or none
  std::vector<Series> series{};     ///< curves; of bars, a point for each
};

/// As JSON, key by key.
template <class Json>
void to_json(Json& json, Series const& of) {
  json = Json{{"title", of.title}, {"points", of.points}};
}
template <class Json>
void to_json(Json& json, Chart const& of) {
  json = Json{{"title", of.title},
              {"x_label", of.x_label},
              {"y_label", of.y_label},
              {"log_x", of.log_x},
              {"log_y", of.log_y},
              {"bars", of.bars},
              {"series", of.series}};
}

}  // namespace plan
