/// @file
/// The program that benches collectives: its options, and Google Benchmark around its cases.
#pragma once

#include "zero/base/config.hpp"
#include "zero/base/error.hpp"
#include "zero/bench/figures.hpp"
#include "zero/bench/measure.hpp"
#include "zero/bench/options.hpp"
#include "zero/bench/report.hpp"
#include "zero/bench/stream.hpp"

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zero::inline ZERO_NAMESPACE::bench::detail {

/// Prints nothing: what Google Benchmark is given where the table is, or another process's output.
class SilentReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(Context const&) override { return true; }
  void ReportRuns(std::vector<Run> const&) override {}
};

/// What was asked for.
struct Request {
  std::vector<Op> ops;
  std::vector<DType> dtypes;
  std::vector<int> ranks;
  std::vector<bool> places{false};
  std::size_t smallest = KiB;
  std::size_t largest = 256 * MiB;
  std::size_t factor = 4;
  Case common;
  std::string json, csv, plot;
  bool help = false;
};

[[nodiscard]] inline int parse_count(std::string_view text) {
  std::size_t const value = parse_size(text);
  if (value > 1'000'000) fail(ErrorKind::invalid_argument, {"'", text, "' is too many"});
  return static_cast<int>(value);
}

/// @param asks_ranks  false where the group is there before the program
[[nodiscard]] inline std::vector<Option> options_of(Request& to, bool asks_ranks) {
  static std::vector<Op> const ops{
      Op::reduce_scatter, Op::all_gather, Op::all_to_all, Op::all_reduce, Op::broadcast};
  static std::vector<DType> const dtypes{DType::f32, DType::bf16, DType::f16};
  to.ops = ops;
  to.dtypes = {DType::f32};
  to.ranks = {2};
  using Text = std::string_view;
  auto const size = [](std::size_t& into) {
    return [&into](Text text) { into = parse_size(text); };
  };
  auto const count = [](int& into) { return [&into](Text text) { into = parse_count(text); }; };
  auto const path = [](std::string& into) { return [&into](Text text) { into = text; }; };
  auto const flag = [](bool& into, bool value) { return [&into, value](Text) { into = value; }; };
  auto const place = [&to](Text text) {
    if (text != "out" && text != "in" && text != "both") {
      fail(ErrorKind::invalid_argument, {"--place is out, in or both, not ", text});
    }
    to.places.clear();
    if (text != "in") to.places.push_back(false);
    if (text != "out") to.places.push_back(true);
  };
  Case& common = to.common;
  std::vector<Option> options{
      {"--op", "which, with commas [all]", [&](Text list) { to.ops = choose(list, ops); }},
      {"--dtype", "fp32, bf16, fp16, all [fp32]", [&](Text l) { to.dtypes = choose(l, dtypes); }},
      {"--place", "send and receive in two buffers or one: out, in, both [out]", place},
      {"--min", "smallest size: bytes of a rank's larger buffer [1K]", size(to.smallest)},
      {"--max", "largest size [256M]", size(to.largest)},
      {"--factor", "from one size to the next [4]", size(to.factor)},
      {"--rounds", "in each of which all is measured in turn [10]", count(common.rounds)},
      {"--iters", "collectives in a row [what 8 MB take, at most 200]", count(common.iterations)},
      {"--late",
       "microseconds that the last rank begins after the others, as in a trainer [0]",
       [&](Text text) { common.late = 1e-6 * parse_count(text); }},
      {"--no-check", "do not look whether results are right", flag(common.check, false), true},
      {"--triad", "a STREAM triad in each round; in JSON and CSV", flag(common.triad, true), true},
      {"--ordinary",
       "ordinary memory instead of the communicator's",
       flag(common.ordinary, true),
       true},
      {"--json", "write rows and fits to a file, or - instead of the table", path(to.json)},
      {"--csv", "write rows to a file, or - instead of the table", path(to.csv)},
      {"--plot",
       "draw busbw over bytes into a .svg or .png file, by gnuplot",
       [&](Text text) { static_cast<void>(plot_script({}, to.plot = text)); }},
      {"--help", "this, and nothing else", flag(to.help, true), true}};
  if (asks_ranks) {
    options.push_back({"--ranks", "sizes of groups, with commas [2]", [&](Text list) {
                         to.ranks.clear();
                         for (Text const t : split_list(list)) to.ranks.push_back(parse_count(t));
                       }});
  }
  return options;
}

/// All cases, those of one group in a row.
struct Named {
  std::string name;
  Case work;
  int ranks;
};
[[nodiscard]] inline std::vector<Named> cases_of(Request const& asked) {
  std::vector<Named> cases;
  for (int const ranks : asked.ranks) {
    for (Op const op : asked.ops) {
      for (DType const dtype : asked.dtypes) {
        for (bool const in_place : asked.places) {
          if (in_place && op == Op::all_to_all) continue;  // there is no such call
          for (std::size_t const bytes : sizes(asked.smallest, asked.largest, asked.factor)) {
            Case work = asked.common;
            work.op = op;
            work.dtype = dtype;
            work.in_place = in_place;
            work.bytes = bytes;
            cases.push_back(
                {"collective/" + std::string(name(op)) + "/" + std::string(name(dtype)) +
                     (in_place ? "/in_place" : "/out_of_place") +
                     "/bytes:" + std::to_string(bytes) + "/ranks:" + std::to_string(ranks),
                 work,
                 ranks});
          }
        }
      }
    }
  }
  return cases;
}

/// Rows as they are measured, and what became of the run.
class Session {
 public:
  using Measure = std::function<Row(Case const&, int ranks)>;
  Session(Measure measure, std::size_t total, bool table, bool prints)
      : measure_(std::move(measure)), total_(total), table_(table), prints_(prints) {}

  void run(benchmark::State& state, Named const& what) {
    if (failed_) return state.SkipWithError("an earlier one failed");
    try {
      progress(what.name);
      rows_.push_back(measure_(what.work, what.ranks));
    } catch (std::exception const& error) {
      failed_ = true;
      std::fprintf(stderr, "%s: %s\n", what.name.c_str(), error.what());
      return state.SkipWithError(error.what());
    }
    Row const& row = rows_.back();
    wrong_ = wrong_ || row.wrong > 0;
    for (auto _ : state) state.SetIterationTime(row.seconds);
    for (Field const& field : fields(row)) {
      if (field.text[0] == '"' || field.text[0] > '9') continue;  // the name says these
      state.counters[std::string(field.name)] = std::strtod(field.text.c_str(), nullptr);
    }
    if (!table_) return;
    if (rows_.size() == 1) print_head(row.raw);
    print_row(row);
  }

  [[nodiscard]] std::vector<Row> const& rows() const { return rows_; }
  [[nodiscard]] bool is_good() const { return !failed_ && !wrong_; }
  [[nodiscard]] bool is_wrong() const { return wrong_; }

 private:
  /// A line now and then, for who waits for a long run.
  void progress(std::string const& name) {
    if (!prints_ || seconds_now() < last_ + 5) return;
    last_ = seconds_now();
    std::fprintf(stderr, "%zu of %zu: %s\n", rows_.size() + 1, total_, name.c_str());
  }

  Measure measure_;
  std::size_t total_;
  bool table_;
  bool prints_;
  double last_ = seconds_now();
  std::vector<Row> rows_;
  bool failed_ = false;
  bool wrong_ = false;
};

/// The whole program. @return its exit status: 0, 1 if a result is wrong or a rank failed, 2 if the
/// options are wrong
/// @param prints  true on the one process that says what came out
/// @param ranks   of the group that is there; 0 if `measure` makes one of any size
inline int run_program(int argc, char** argv, bool prints, int ranks, Session::Measure measure) {
  std::string_view const program = argv[0];
  Request asked;
  try {
    auto const options = options_of(asked, ranks == 0);
    std::vector<char*> rest = parse_options(argc, argv, options);
    if (asked.help) {
      if (prints) print_help(program, options);
      return 0;
    }
    if (ranks > 0) asked.ranks = {ranks};
    auto const cases = cases_of(asked);
    if (cases.empty()) fail(ErrorKind::invalid_argument, "all_to_all has no --place in");
    bool google = false, lists = false;
    for (char const* const argument : rest) {
      std::string_view const text = argument;
      google = google || text.substr(0, 19) == "--benchmark_format=";
      lists = lists || text.substr(0, 22) == "--benchmark_list_tests";
    }
    if (!prints)
      std::erase_if(rest,
                    [](std::string_view text) { return text.substr(0, 15) == "--benchmark_out"; });
    auto count = static_cast<int>(rest.size());
    rest.push_back(nullptr);
    benchmark::Initialize(&count, rest.data());
    bool const table = prints && !google && asked.json != "-" && asked.csv != "-";
    Session session(std::move(measure), cases.size(), table, prints);
    for (Named const& what : cases) {
      benchmark::RegisterBenchmark(
          what.name.c_str(),
          [&session, &what](benchmark::State& state) { session.run(state, what); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
    SilentReporter silent;
    std::size_t const matched =
        benchmark::RunSpecifiedBenchmarks(prints && google ? nullptr : &silent);
    benchmark::ClearRegisteredBenchmarks();
    if (matched == 0) return 2;  // Google Benchmark has said so
    if (lists || !prints) return session.is_good() ? 0 : 1;
    auto const& rows = session.rows();
    if (table) print_fits(fit_all(rows));
    if (!asked.json.empty()) write_text(asked.json, json_text(rows));
    if (!asked.csv.empty()) write_text(asked.csv, csv_text(rows));
    if (!asked.plot.empty()) plot(rows, asked.plot);
    if (session.is_wrong()) std::fprintf(stderr, "some results are wrong: see #wrong\n");
    return session.is_good() ? 0 : 1;
  } catch (Error const& error) {
    if (prints) {
      std::fprintf(stderr,
                   "%.*s: %s\n",
                   static_cast<int>(program.size()),
                   program.data(),
                   error.message().c_str());
    }
    return error.kind() == ErrorKind::invalid_argument ? 2 : 1;
  }
}

}  // namespace zero::inline ZERO_NAMESPACE::bench::detail
