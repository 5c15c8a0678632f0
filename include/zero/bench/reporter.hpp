/// @file
/// A program around Google Benchmark: its own options first, a table of medians.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/version.hpp"
#include "zero/bench/options.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench::detail {

/// Google Benchmark's table: a line for each benchmark, with the medians of its repetitions; all
/// else is in JSON. After a failure nothing more.
class Medians : public benchmark::ConsoleReporter {
 public:
  explicit Medians(bool const& failed) : ConsoleReporter(OO_Tabular), failed_(failed) {}
  bool ReportContext(Context const& context) override {
    bool const goes_on = ConsoleReporter::ReportContext(context);
    name_field_width_ -= (std::min)(name_field_width_, hidden.size());
    return goes_on;
  }
  void ReportRuns(std::vector<Run> const& runs) override {
    if (failed_) {
      if (!std::exchange(told_, true)) ConsoleReporter::ReportRuns({runs.front()});
      return;
    }
    std::vector<Run> shown;
    for (Run run : runs) {
      if (run.run_type == Run::RT_Aggregate && run.aggregate_name != "median") continue;
      run.run_name.min_time.clear();
      run.run_name.time_type.clear();
      run.run_name.iterations.clear();
      run.run_type = Run::RT_Iteration;
      shown.push_back(run);
    }
    ConsoleReporter::ReportRuns(shown);
  }

 private:
  /// What stands behind every name.
  static constexpr std::string_view hidden = "/min_time:0.020/manual_time_stddev";

  bool const& failed_;
  bool told_ = false;
};

/// What a program is told to do, and what became of it.
struct Program {
  int argc;
  char** argv;
  std::vector<Option> options{};
  bool help = false;    ///< what --help sets
  bool failed = false;  ///< what a benchmark sets that cannot go on
  bool wrong = false;   ///< what one sets whose result is wrong

  /// Is it an option of Google Benchmark's that was given?
  [[nodiscard]] bool has(std::string_view option) const {
    return std::any_of(
        argv + 1, argv + argc, [=](std::string_view text) { return text.starts_with(option); });
  }
  template <class Add>
  [[nodiscard]] int run(Add const& add);
};

/// Parses options, registers and runs.
/// @param add  registers the benchmarks that the options ask for
/// @return main's: 0, 1 if something failed or is wrong, 2 if the options are wrong
template <class Add>
int Program::run(Add const& add) {
  try {
    std::vector<char*> rest = parse_options(argc, argv, options);
    if (help) {
      print_help(argv[0], options);
      return 0;
    }
    bool const table = !has("--benchmark_format=");
    // What comes later wins.
    std::string defaults[] = {"--benchmark_repetitions=10",
                              "--benchmark_display_aggregates_only=true"};
    rest.insert(rest.begin() + 1, defaults[0].data());
    if (table) rest.insert(rest.begin() + 1, defaults[1].data());
    auto count = static_cast<int>(rest.size());
    rest.push_back(nullptr);
    benchmark::Initialize(&count, rest.data());
    if (benchmark::ReportUnrecognizedArguments(count, rest.data())) return 2;
    benchmark::AddCustomContext(
        "zero", std::to_string(version.major) + "." + std::to_string(version.minor));
    add();
    Medians medians(failed);
    std::size_t const matched = benchmark::RunSpecifiedBenchmarks(table ? &medians : nullptr);
    benchmark::ClearRegisteredBenchmarks();
    if (matched == 0) return 2;  // Google Benchmark has said so
    if (wrong) std::fprintf(stderr, "%s: some results are wrong\n", argv[0]);
    return failed || wrong ? 1 : 0;
  } catch (Error const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.message().c_str());
    return error.kind() == ErrorKind::invalid_argument ? 2 : 1;
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::bench::detail
