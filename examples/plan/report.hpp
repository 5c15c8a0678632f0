/// @file
/// What a subcommand has found, and the ways to show it: text, JSON, CSV, pictures.
#pragma once

#include "chart.hpp"
#include "zero/layout/plan.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace plan {

/// One cell of a table: as people read it, and as programs do.
struct Cell {
  std::string text;
  nlohmann::ordered_json value;
  bool left = false;  ///< words; numbers end below each other

  Cell(std::string words) : text(words), value(std::move(words)), left(true) {}
  Cell(char const* words) : Cell(std::string(words)) {}
  Cell(std::uint64_t number) : text(zero::detail::with_commas(number)), value(number) {}
  Cell(std::string shown, nlohmann::ordered_json of)
      : text(std::move(shown)), value(std::move(of)) {}
};

struct Table {
  std::string name;                  ///< key in JSON, first column in CSV
  std::string title;                 ///< above it
  std::vector<std::string> columns;  ///< keys of a row in JSON
  std::vector<std::vector<Cell>> rows;
};

struct Report {
  std::vector<std::string> head;  ///< sentences before the tables
  std::vector<Table> tables;
  std::vector<std::string> notes;  ///< sentences behind them
  std::vector<Chart> charts;
  nlohmann::ordered_json data = nlohmann::ordered_json::object();  ///< more members of the JSON
};

/// Where a report goes; "-" is the standard output, instead of the text.
struct Output {
  std::string json;
  std::string csv;
  bool charts = false;  ///< in JSON
};

/// Says on the error stream that work goes on, from its first second until the object ends: a line
/// that rewrites itself on a terminal, and elsewhere one after 1, 2, 4, 8, ... seconds.
class Progress {
 public:
  /// @param what  is being done
  explicit Progress(std::string what);
  Progress(Progress const&) = delete;
  Progress& operator=(Progress const&) = delete;
  ~Progress();

 private:
  void watch();

  std::string what_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool ends_ = false;
  std::thread watcher_;
};

/// What a subcommand does once its options are read.
struct Command {
  std::string name;
  Output output;
  std::function<Report()> make;
};

/// A subcommand with the options of `Output`. `command.make` is set when it is the one chosen.
CLI::App* add_command(CLI::App& app,
                      Command& command,
                      std::string const& name,
                      std::string const& help,
                      std::function<Report()> make);

/// The main function of a program with subcommands.
/// @param name   of the program, for messages
/// @param about  what it is for
/// @param add    adds a subcommand each
int run_program(int argc,
                char** argv,
                std::string const& name,
                std::string const& about,
                std::initializer_list<void (*)(CLI::App&, Command&)> add);

/// Writes a file; "-" is the standard output.
/// @throws zero::Error (resource) if it cannot be written
void write_text(std::string const& path, std::string const& text);

/// Bytes as gigabytes (10^9) with that many decimals.
[[nodiscard]] Cell gigabytes(std::uint64_t bytes, int decimals = 2);

/// A part of 1 in percent.
/// @param sign  shows a plus, too
[[nodiscard]] Cell percent(double part, bool sign = false);

/// Seconds in the unit that reads best.
[[nodiscard]] Cell duration(double seconds);

/// A number that is not worth more than two digits.
[[nodiscard]] std::string rough(double value);
/// The same of seconds, in the unit that reads best, up to days.
[[nodiscard]] Cell rough_duration(double seconds);

/// A number with that many decimals.
[[nodiscard]] std::string fixed(double value, int decimals);

/// Parameters in billions or trillions: 7.52 B.
[[nodiscard]] std::string billions(std::uint64_t parameters);

}  // namespace plan
