/// @file
/// Google Benchmark as a whole program.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/base/version.hpp"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench::detail {

/// Reads Google Benchmark's options, registers what is to be measured, runs and reports it.
/// @param argc  of main
/// @param argv  of main
/// @param list  is called with add(name, unit, measure) and calls that for each benchmark, whose
///              time measure(state) sets. An Error of it is said in one line
/// @return 0; 2 if the options are wrong, match nothing, or `list` has thrown an Error
/// @throws what a benchmark throws; nothing is measured after it, and JSON ends in the middle
template <class List>
[[nodiscard]] int run_program(int argc, char** argv, List const& list) {
  auto const given = [&](std::string_view option) {
    return std::any_of(
        argv, argv + argc, [&](std::string_view one) { return one.starts_with(option); });
  };
  if (given("--help")) {  // at which Google Benchmark would leave processes that wait for this one
    benchmark::PrintDefaultHelp();
    return 0;
  }
  // Medians of repetitions, unless the options that come later say otherwise.
  std::string defaults[] = {"--benchmark_repetitions=10",
                            "--benchmark_display_aggregates_only=true",
                            "--benchmark_counters_tabular=true"};
  std::vector<char*> arguments(argv, argv + argc);
  for (std::string& one : defaults) arguments.insert(arguments.begin() + 1, one.data());
  auto count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) return 2;
  benchmark::AddCustomContext("zero",
                              std::to_string(version.major) + "." + std::to_string(version.minor));
  bool const timed = given("--benchmark_min_time");  // which changes nothing that is set here
  struct Registered {
    ~Registered() { benchmark::ClearRegisteredBenchmarks(); }
  } const registered;
  try {
    list([timed](std::string const& name, benchmark::TimeUnit unit, auto const& measure) {
      auto* const one = benchmark::RegisterBenchmark(name.c_str(), measure);
      one->UseManualTime()->Unit(unit);
      if (!timed) one->MinTime(0.02);
    });
  } catch (Error const& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.message().c_str());
    return 2;
  }
  // Which has said so if none matches.
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 2;
}

}  // namespace zero::inline ZERO_NAMESPACE::bench::detail
