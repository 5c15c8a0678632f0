/// @file
/// Pictures of figures, drawn by gnuplot: curves and stacked bars. Needs nothing to be built.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// A number as JSON and gnuplot have it; null if it is not finite.
[[nodiscard]] inline std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  std::snprintf(text, sizeof(text), "%.7g", value);
  return text;
}

/// Writes a file; "-" is the standard output.
/// @throws Error (resource) if it cannot be written
inline void write_text(std::string const& path, std::string const& text) {
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file != nullptr && file != stdout) written = std::fclose(file) == 0 && written;
  if (!written) fail(ErrorKind::resource, {"cannot write ", path});
}

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

/// The beginning of a script for gnuplot which draws into `path`.
/// @param path    ends in .svg or .png
/// @param height  pixels
/// @throws Error (invalid_argument) if `path` ends otherwise, or has a quote
[[nodiscard]] inline std::string plot_head(std::string const& path, int height = 600) {
  std::string const end = path.size() < 4 ? "" : path.substr(path.size() - 4);
  if ((end != ".svg" && end != ".png") || path.find('\'') != std::string::npos) {
    fail(ErrorKind::invalid_argument,
         {"--plot takes a file that ends in .svg or .png and has no quote, not ", path});
  }
  return "set terminal " + std::string(end == ".svg" ? "svg" : "pngcairo") + " size 900," +
         std::to_string(height) + "\nset output '" + path + "'\nset termoption noenhanced\n";
}

namespace detail {

/// A text as gnuplot has it.
[[nodiscard]] inline std::string plot_text(std::string_view text) {
  std::string result = "'";
  for (char const c : text) {
    result += c;
    if (c == '\'') result += c;
  }
  return result + "'";
}

[[nodiscard]] inline std::string bars_of(Chart const& chart, std::string const& block) {
  std::string data = block + " << EOD\n";
  std::string plots;
  for (std::size_t bar = 0; bar < chart.bars.size(); ++bar) {
    data += '"' + chart.bars[bar] + '"';
    for (Series const& layer : chart.series) data += " " + number_text(layer.points[bar].second);
    data += "\n";
  }
  for (std::size_t layer = 0; layer < chart.series.size(); ++layer) {
    plots += std::string(plots.empty() ? "plot " : ", \\\n  ") + block + " using " +
             std::to_string(layer + 2) + ":xtic(1) title " + plot_text(chart.series[layer].title);
  }
  // Many names would lie over each other.
  std::string const turned = chart.bars.size() > 5 ? "set xtics rotate by -30\n" : "";
  return turned +
         "set style data histograms\nset style histogram rowstacked\nset boxwidth 0.6\n"
         "set style fill solid 0.8\nset yrange [0:*]\n" +
         data + "EOD\n" + plots + "\n";
}

[[nodiscard]] inline std::string curves_of(Chart const& chart, std::string const& block) {
  std::string data;
  std::string plots;
  for (std::size_t curve = 0; curve < chart.series.size(); ++curve) {
    std::string const own = block + "_" + std::to_string(curve);
    data += own + " << EOD\n";
    for (auto const& [x, y] : chart.series[curve].points) {
      data += number_text(x) + " " + number_text(y) + "\n";
    }
    data += "EOD\n";
    plots += std::string(plots.empty() ? "plot " : ", \\\n  ") + own +
             " using 1:2 with linespoints title " + plot_text(chart.series[curve].title);
  }
  return "set yrange [*:*]\n" + data + plots + "\n";
}

}  // namespace detail

/// A script for gnuplot with its data inside, which draws charts below each other into `path`.
/// @throws Error (invalid_argument) as `plot_head`
[[nodiscard]] inline std::string chart_script(std::vector<Chart> const& charts,
                                              std::string const& path) {
  std::string script = plot_head(path, 450 * static_cast<int>(charts.size()));
  script += "set key outside right\nset grid\nset multiplot layout " +
            std::to_string(charts.size()) + ",1\n";
  for (std::size_t c = 0; c < charts.size(); ++c) {
    Chart const& chart = charts[c];
    script += "set title " + detail::plot_text(chart.title) + "\nset xlabel " +
              detail::plot_text(chart.x_label) + "\nset ylabel " +
              detail::plot_text(chart.y_label) + "\nunset logscale\nset xtics autofreq norotate\n";
    if (chart.log_x) script += "set logscale x 2\n";
    if (chart.log_y) script += "set logscale y 10\n";
    std::string const block = "$c" + std::to_string(c);
    script += chart.bars.empty() ? detail::curves_of(chart, block) : detail::bars_of(chart, block);
  }
  return script + "unset multiplot\n";
}

/// Writes a script beside `path` and lets gnuplot draw; says so in a line where it cannot.
/// @param script  for gnuplot, such as `chart_script` makes
/// @param path    the picture
/// @throws Error (resource) if the script cannot be written
inline void draw(std::string const& script, std::string const& path) {
  std::string const file = path + ".gnuplot";
  write_text(file, script);
  if (std::system(("gnuplot '" + file + "' 2>/dev/null").c_str()) == 0) return;
  std::fprintf(stderr,
               "%s is not drawn: gnuplot is not installed, or failed; 'gnuplot %s' draws it\n",
               path.c_str(),
               file.c_str());
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
