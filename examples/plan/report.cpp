#include "report.hpp"

#include "zero/base/error.hpp"
#include "zero/base/version.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <utility>

namespace plan {

namespace {

std::string version_text() {
  return std::to_string(zero::version.major) + "." + std::to_string(zero::version.minor) + "." +
         std::to_string(zero::version.patch);
}

/// Columns of a terminal that UTF-8 takes.
std::size_t width_of(std::string const& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::string text_of(Table const& table) {
  std::vector<std::size_t> widths;
  for (std::string const& column : table.columns) widths.push_back(width_of(column));
  for (auto const& row : table.rows) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], width_of(row[c].text));
    }
  }
  auto const line = [&](auto const& text, auto const& left) {
    std::string result;
    for (std::size_t c = 0; c < widths.size(); ++c) {
      std::string const fill(widths[c] - width_of(text(c)), ' ');
      result += (c > 0 ? "  " : "") + (left(c) ? text(c) + fill : fill + text(c));
    }
    result.erase(result.find_last_not_of(' ') + 1);
    return result + "\n";
  };
  std::string result = table.title + "\n";
  result += line([&](std::size_t c) { return table.columns[c]; },
                 [&](std::size_t c) { return table.rows.empty() || table.rows[0][c].left; });
  for (auto const& row : table.rows) {
    result += line([&](std::size_t c) { return row[c].text; },
                   [&](std::size_t c) { return row[c].left; });
  }
  return result;
}

std::string text_of(Report const& report) {
  std::string result;
  for (std::string const& sentence : report.head) result += sentence + "\n";
  for (Table const& table : report.tables) result += "\n" + text_of(table);
  if (!report.notes.empty()) result += "\n";
  for (std::string const& sentence : report.notes) result += sentence + "\n";
  return result.substr(result.front() == '\n' ? 1 : 0);
}

std::string json_of(Report const& report, std::string const& command, bool charts) {
  nlohmann::ordered_json document{{"schema", "zero.plan/1"},
                                  {"zero", version_text()},
                                  {"command", command},
                                  {"head", report.head}};
  for (Table const& table : report.tables) {
    auto rows = nlohmann::ordered_json::array();
    for (auto const& row : table.rows) {
      nlohmann::ordered_json object;
      for (std::size_t c = 0; c < row.size(); ++c) object[table.columns[c]] = row[c].value;
      rows.push_back(std::move(object));
    }
    document[table.name] = std::move(rows);
  }
  document["notes"] = report.notes;
  document.update(report.data);
  if (charts && !report.charts.empty()) document["charts"] = report.charts;
  return document.dump(1) + "\n";
}

std::string quoted(nlohmann::ordered_json const& value, std::string const& text) {
  std::string plain = value.is_string()   ? value.get<std::string>()
                      : value.is_object() ? text
                                          : value.dump();
  if (plain.find_first_of(",\"\n") == std::string::npos) return plain;
  for (std::size_t at = 0; (at = plain.find('"', at)) != std::string::npos; at += 2) {
    plain.insert(at, 1, '"');
  }
  return '"' + plain + '"';
}

/// One line for each cell, so that all tables are one.
std::string csv_of(Report const& report) {
  std::string result = "table,row,column,value\n";
  for (Table const& table : report.tables) {
    for (auto const& row : table.rows) {
      for (std::size_t c = 1; c < row.size(); ++c) {
        result += table.name + "," + quoted(row[0].value, row[0].text) + "," +
                  quoted(table.columns[c], "") + "," + quoted(row[c].value, row[c].text) + "\n";
      }
    }
  }
  return result;
}

/// Makes the report and writes it.
void show(Command const& command) {
  Report const report = command.make();
  Output const& to = command.output;
  if (to.json != "-" && to.csv != "-") write_text("-", text_of(report));
  if (!to.json.empty()) write_text(to.json, json_of(report, command.name, to.charts));
  if (!to.csv.empty()) write_text(to.csv, csv_of(report));
}

}  // namespace

Progress::Progress(std::string what) : what_(std::move(what)), watcher_([this] { watch(); }) {}

Progress::~Progress() {
  {
    std::lock_guard const lock(mutex_);
    ends_ = true;
  }
  ended_.notify_one();
  watcher_.join();
}

void Progress::watch() {
  bool const terminal = isatty(STDERR_FILENO) == 1;
  auto const begun = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  int shown = 0;
  for (int second = 1;; second = terminal ? second + 1 : 2 * second) {
    if (ended_.wait_until(lock, begun + std::chrono::seconds(second), [this] { return ends_; })) {
      break;
    }
    std::fprintf(stderr,
                 "%s%s, %d s so far%s",
                 terminal ? "\r\033[K" : "",
                 what_.c_str(),
                 second,
                 terminal ? "" : "\n");
    shown = second;
  }
  if (terminal && shown > 0) std::fprintf(stderr, "\r\033[K");
}

CLI::App* add_command(CLI::App& app,
                      Command& command,
                      std::string const& name,
                      std::string const& help,
                      std::function<Report()> make) {
  CLI::App* const sub = app.add_subcommand(name, help);
  sub->option_defaults()->always_capture_default();
  sub->add_option("--json", command.output.json, "Write JSON to a file, or - instead of the text");
  sub->add_flag("--charts", command.output.charts, "In JSON: what bench/plot.py draws");
  sub->add_option("--csv",
                  command.output.csv,
                  "Write CSV to a file, or - instead of the text: a line for each cell");
  sub->callback([&command, name, make = std::move(make)] {
    command.name = name;
    command.make = make;
  });
  return sub;
}

int run_program(int argc,
                char** argv,
                std::string const& name,
                std::string const& about,
                std::initializer_list<void (*)(CLI::App&, Command&)> add) {
  Command command;
  CLI::App app{about};
  app.require_subcommand(1);
  app.set_version_flag("--version", name + " " + version_text());
  for (auto* const one : add) one(app, command);
  auto const refuse = [&](std::string const& why, int code) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), why.c_str());
    return code;
  };
  try {
    auto const is_asked = [&](CLI::App* sub) { return sub->get_name() == argv[1]; };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_asked).empty()) {
      zero::fail(zero::ErrorKind::invalid_argument,
                 {"there is no subcommand '", argv[1], "'; see --help"});
    }
    app.parse(argc, argv);
    show(command);
    return 0;
  } catch (CLI::ParseError const& error) {
    return error.get_exit_code() == 0 ? app.exit(error) : refuse(error.what(), 2);
  } catch (zero::Error const& error) {
    return refuse(error.message(), error.kind() == zero::ErrorKind::invalid_argument ? 2 : 1);
  } catch (std::exception const& error) {
    return refuse(error.what(), 1);
  }
}

void write_text(std::string const& path, std::string const& text) {
  std::FILE* const file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  bool written = file != nullptr && std::fputs(text.c_str(), file) >= 0;
  if (file != nullptr && file != stdout) written = std::fclose(file) == 0 && written;
  if (!written) zero::fail(zero::ErrorKind::resource, {"cannot write ", path});
}

Cell duration(double seconds) {
  bool const small = seconds < 0.1;
  return {fixed(small ? seconds * 1e3 : seconds, 2) + (small ? " ms" : " s"), seconds};
}

std::string rough(double value) {
  if (!(value > 0.)) return "0";
  double const digit = std::pow(10., std::floor(std::log10(value)) - 1.);
  double const rounded = std::round(value / digit) * digit;
  // As 9.96 becomes 10, which has two digits without a decimal.
  return rounded >= 9.95 ? zero::detail::with_commas(static_cast<std::uint64_t>(rounded + 0.5))
                         : fixed(rounded, rounded >= 0.995 ? 1 : 2);
}

Cell rough_duration(double seconds) {
  constexpr double day = 86400.;
  if (seconds < 1.) return {rough(seconds * 1e3) + " ms", seconds};
  if (seconds < 7200.) return {rough(seconds) + " s", seconds};
  if (seconds < 2. * day) return {rough(seconds / 3600.) + " h", seconds};
  return {rough(seconds / day) + " days", seconds};
}

std::string fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", decimals, value);
  return text;
}

Cell gigabytes(std::uint64_t bytes, int decimals) {
  return {fixed(static_cast<double>(bytes) / 1e9, decimals), bytes};
}

Cell percent(double part, bool sign) {
  return {(sign && part >= 0. ? "+" : "") + fixed(100. * part, 1) + " %", part};
}

std::string billions(std::uint64_t parameters) {
  auto const number = static_cast<double>(parameters);
  return number < 1e12 ? fixed(number / 1e9, 2) + " B" : fixed(number / 1e12, 2) + " T";
}

}  // namespace plan
