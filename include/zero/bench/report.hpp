/// @file
/// Writes rows and fits: a table, JSON, CSV, a plot.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/version.hpp"
#include "zero/bench/figures.hpp"
#include "zero/bench/plot.hpp"

#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench {

/// One figure by name: text as JSON has it.
struct Field {
  std::string_view name;  ///< key in JSON, head of a column in CSV
  std::string text;       ///< its value: a number, null, true, false, or a string in quotes
};

/// A string as JSON has it, of text without control characters.
[[nodiscard]] inline std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (char const c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

namespace detail {

/// What rows and fits have in common.
template <class Figures>
[[nodiscard]] std::vector<Field> kind_fields(Figures const& of) {
  return {{"op", bench::quoted(name(of.op))},
          {"dtype", bench::quoted(name(of.dtype))},
          {"ranks", std::to_string(of.ranks)},
          {"in_place", of.in_place ? "true" : "false"}};
}

}  // namespace detail

/// A row by names that stay: what JSON and CSV have.
[[nodiscard]] inline std::vector<Field> fields(Row const& row) {
  auto result = detail::kind_fields(row);
  result.insert(result.end(),
                {{"bytes", std::to_string(row.bytes)},
                 {"count", std::to_string(row.count)},
                 {"us", number_text(row.seconds * 1e6)},
                 {"best_us", number_text(row.best_seconds * 1e6)},
                 {"algbw", number_text(row.algbw())},
                 {"busbw", number_text(row.busbw())},
                 {"raw_us", number_text(row.raw_seconds * 1e6)},
                 {"raw_algbw", number_text(row.raw_gbs())},
                 {"vs_raw", number_text(row.vs_raw)},
                 {"best_vs_raw", number_text(row.best_vs_raw)},
                 {"wrong", row.wrong < 0 ? "null" : number_text(row.wrong)}});
  if (row.triad_gbs > 0) {
    result.insert(result.end(),
                  {{"triad", number_text(row.triad_gbs)},
                   {"traffic_over_triad", number_text(row.best_over_triad)},
                   {"typical_over_triad", number_text(row.typical_over_triad)}});
  }
  return result;
}

/// A fit by names that stay. `bandwidth` is null where larger buffers took no longer.
[[nodiscard]] inline std::vector<Field> fields(Fit const& fit) {
  auto result = detail::kind_fields(fit);
  result.insert(result.end(),
                {{"rows", std::to_string(fit.rows)},
                 {"min_bytes", std::to_string(fit.min_bytes)},
                 {"max_bytes", std::to_string(fit.max_bytes)},
                 {"latency_us", number_text(fit.latency * 1e6)},
                 {"bandwidth", number_text(fit.gbs())},
                 {"error", number_text(fit.error)}});
  return result;
}

/// {"schema": ..., "zero": ..., "raw": ..., "rows": [...], "fits": [...]}, an object per line.
[[nodiscard]] inline std::string json_text(std::vector<Row> const& rows) {
  std::string text =
      "{\"schema\": \"zero.bench.collectives/1\", \"zero\": " +
      bench::quoted(std::to_string(version.major) + "." + std::to_string(version.minor)) +
      ", \"raw\": " + (rows.empty() ? "null" : bench::quoted(rows.front().raw));
  auto const add = [&](std::string_view key, auto const& items) {
    text += ",\n\"" + std::string(key) + "\": [";
    for (bool first = true; auto const& item : items) {
      text += first ? "\n{" : ",\n{";
      first = true;
      for (Field const& field : fields(item)) {
        text += (first ? "" : ", ") + bench::quoted(field.name) + ": " + field.text;
        first = false;
      }
      text += "}";
    }
    text += "]";
  };
  add("rows", rows);
  add("fits", fit_all(rows));
  return text + "}\n";
}

/// A line of names and a line per row.
[[nodiscard]] inline std::string csv_text(std::vector<Row> const& rows) {
  std::string text;
  for (Row const& row : rows) {
    std::string names, values;
    for (Field const& field : fields(row)) {
      names += (names.empty() ? "" : ",") + std::string(field.name);
      values += (values.empty() ? "" : ",") + field.text;
    }
    text += (text.empty() ? names + "\n" : "") + values + "\n";
  }
  return text;
}

/// The head of the table. @param raw  what the baseline is called
inline void print_head(std::string_view raw) {
  std::printf(
      "# bytes are a rank's larger buffer, count one rank's block, us medians of the slowest "
      "rank, bandwidths in GB/s\n# raw: %.*s, in turn with it; vs raw: its time over ours\n",
      static_cast<int>(raw.size()),
      raw.data());
  std::printf("%-15s %-5s %5s %10s %10s %-3s %11s %8s %8s %8s %7s %7s\n",
              "# op",
              "dtype",
              "ranks",
              "bytes",
              "count",
              "in",
              "us",
              "algbw",
              "busbw",
              "raw",
              "vs raw",
              "#wrong");
}

/// One line of the table.
inline void print_row(Row const& row) {
  std::printf("%-15s %-5s %5d %10zu %10zu %-3s %11.2f %8.3f %8.3f %8.3f %7.3g %7s\n",
              std::string(name(row.op)).c_str(),
              std::string(name(row.dtype)).c_str(),
              row.ranks,
              row.bytes,
              row.count,
              row.in_place ? "yes" : "no",
              row.seconds * 1e6,
              row.algbw(),
              row.busbw(),
              row.raw_gbs(),
              row.vs_raw,
              row.wrong < 0 ? "-" : number_text(row.wrong).c_str());
  std::fflush(stdout);
}

/// What follows the table.
inline void print_fits(std::vector<Fit> const& fits) {
  std::printf("# time = latency + bytes / bandwidth; error: root mean square, relative\n");
  for (Fit const& fit : fits) {
    std::printf("# %-13s %-5s %5d ranks, in place: %-3s %9.2f us + bytes / %s GB/s, error %.2f\n",
                std::string(name(fit.op)).c_str(),
                std::string(name(fit.dtype)).c_str(),
                fit.ranks,
                fit.in_place ? "yes" : "no",
                fit.latency * 1e6,
                std::isfinite(fit.gbs()) ? number_text(fit.gbs()).c_str() : "-",
                fit.error);
  }
}

/// A script for gnuplot with its data inside, which draws busbw over bytes into `path`.
/// @param rows  what is drawn
/// @param path  ends in .svg or .png
/// @throws Error (invalid_argument) if `path` ends otherwise, or has a quote
[[nodiscard]] inline std::string plot_script(std::vector<Row> const& rows,
                                             std::string const& path) {
  std::string const head = plot_head(path);
  std::string data, plots;
  int blocks = 0;
  for (Fit const& kind : fit_all(rows)) {
    std::string const title = std::string(name(kind.op)) + " " + std::string(name(kind.dtype)) +
                              ", " + std::to_string(kind.ranks) + " ranks" +
                              (kind.in_place ? ", in place" : "");
    data += "$b" + std::to_string(blocks) + " << EOD\n";
    for (Row const& row : rows) {
      if (row.op != kind.op || row.dtype != kind.dtype || row.ranks != kind.ranks ||
          row.in_place != kind.in_place) {
        continue;
      }
      double const raw_busbw = row.raw_gbs() * bus_factor(row.op, row.ranks);
      data += std::to_string(row.bytes) + " " + number_text(row.busbw()) + " " +
              number_text(raw_busbw) + "\n";
    }
    data += "EOD\n";
    for (bool const baseline : {false, true}) {
      plots += std::string(plots.empty() ? "plot " : ", \\\n  ") + "$b" + std::to_string(blocks) +
               " using 1:" + (baseline ? "3 with lines dashtype 2" : "2 with linespoints") +
               " linecolor " + std::to_string(blocks + 1) + " title '" +
               (baseline ? std::string(rows.front().raw) : title) + "'";
    }
    ++blocks;
  }
  return head +
         "set logscale x 2\nset format x '%.0b%B'\nset xlabel 'bytes'\n"
         "set ylabel 'busbw, GB/s'\nset key below\nset grid\n" +
         data + plots + "\n";
}

/// Writes the script beside `path` and lets gnuplot draw; says so in a line where it cannot.
/// @param rows  what is drawn
/// @param path  as above
/// @throws Error as above, or (resource) if the script cannot be written
inline void plot(std::vector<Row> const& rows, std::string const& path) {
  draw(plot_script(rows, path), path);
}

}  // namespace zero::inline ZERO_NAMESPACE::bench
