#include "plan/machine.hpp"
#include "plan/read_json.hpp"
#include "validation.hpp"
#include "whole_number.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace plan {

namespace {

/// A run of train_gpt.
struct Run {
  std::string name;
  Setup setup;
  double seconds = 0.;  ///< of a step: the median over steps, as measured
};

/// Calibration, runs, and what is left of the calibration's triad and ping-pong after them.
struct Round {
  Machine machine;
  std::vector<Run> runs;
  double triad = 0.;      ///< seconds, afterwards
  double ping_pong = 0.;  ///< seconds, afterwards
};

/// What is asked for.
struct HereOptions {
  int rounds = 20;        ///< to keep
  double seconds = 12.;   ///< of a calibration
  double run = 1.;        ///< seconds of training in a run
  std::string train_gpt;  ///< program; empty: beside this one
  std::string save;       ///< file for the rounds; empty: none
  std::string recorded;   ///< file with rounds that were saved, instead of new ones
};

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// By how much triad and ping-pong may differ between the beginning and the end of a round.
constexpr double tolerance = 0.15;

/// Sizes between the points that calibration measures, all stages, buckets down to 64 KiB, with and
/// without much to compute between collectives.
std::vector<Run> all_runs() {
  auto const run = [](int ranks,
                      char const* stage,
                      Transformer const& model,
                      std::uint64_t batch,
                      std::size_t bucket) {
    Setup setup{.model = model,
                .ranks = ranks,
                .policies = {.stage = stage, .precision = "fp32"},
                .batch = batch,
                .bucket = {bucket}};
    setup.model.vocab = 256;
    std::string const name = std::to_string(ranks) + " x " + stage + ", " +
                             std::to_string(model.layers) + " x " + std::to_string(model.hidden) +
                             ", " + std::to_string(batch) + " x " + std::to_string(model.sequence) +
                             ", " + std::to_string(bucket >> 10U) + " KiB";
    return Run{name, setup};
  };
  using zero::KiB;
  using zero::MiB;
  return {run(1, "pos+g", {.layers = 4, .hidden = 128, .heads = 4, .sequence = 64}, 4, 25 * MiB),
          run(1, "pos", {.layers = 2, .hidden = 192, .heads = 6, .sequence = 96}, 3, 512 * KiB),
          run(2, "replicated", {.layers = 4, .hidden = 128, .heads = 4, .sequence = 64}, 4, MiB),
          run(2, "pos", {.layers = 3, .hidden = 160, .heads = 5, .sequence = 48}, 6, 256 * KiB),
          run(2, "pos+g", {.layers = 4, .hidden = 128, .heads = 4, .sequence = 64}, 4, 64 * KiB),
          run(2, "pos+g", {.layers = 4, .hidden = 192, .heads = 6, .sequence = 32}, 1, 25 * MiB),
          run(2, "pos+g+p", {.layers = 6, .hidden = 96, .heads = 4, .sequence = 128}, 2, MiB),
          run(2, "pos+g+p", {.layers = 2, .hidden = 256, .heads = 8, .sequence = 64}, 4, 25 * MiB)};
}

double predict(Machine const& machine, Setup const& setup) {
  World world(machine.cluster(setup.ranks));
  return trainer_step(world, machine, setup).seconds;
}

/// Runs a program and waits for it.
void execute(std::vector<std::string> const& words) {
  std::vector<char*> arguments;
  for (std::string const& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int const stream : {STDOUT_FILENO, STDERR_FILENO}) {
    posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  }
  pid_t child = 0;
  int const error =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  if (error != 0 || waitpid(child, &status, 0) != child || status != 0) {
    zero::fail(zero::ErrorKind::resource,
               {"'", words[0], "' does not run; name train_gpt by --train-gpt"});
  }
}

/// Where train_gpt is built, seen from this program.
std::string beside_this_program() {
  std::error_code none;
  fs::path const self = fs::read_symlink("/proc/self/exe", none);
  return (self.parent_path().parent_path().parent_path() / "examples" / "gpt" / "train_gpt")
      .string();
}

/// A folder that ends with the object.
class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / ("zero-plan-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
    std::ofstream text(path_ / "text");
    for (int i = 0; i < 20'000; ++i) text << i * i % 9973 << (i % 8 == 0 ? '\n' : ' ');
  }
  Scratch(Scratch const&) = delete;
  Scratch& operator=(Scratch const&) = delete;
  ~Scratch() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  [[nodiscard]] std::string file(char const* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

/// @returns seconds of a step, the median over about so many seconds
double train(HereOptions const& options, Scratch const& scratch, Setup const& setup, double guess) {
  auto const text = [](auto number) { return std::to_string(number); };
  int const steps = static_cast<int>(std::clamp(options.run / guess, 10., 5000.)) + 1;
  execute({options.train_gpt.empty() ? beside_this_program() : options.train_gpt,
           "--text",
           scratch.file("text"),
           "--json",
           scratch.file("result"),
           "--ranks",
           text(setup.ranks),
           "--stage",
           setup.policies.stage,
           "--precision",
           setup.policies.precision,
           "--layers",
           text(setup.model.layers),
           "--channels",
           text(setup.model.hidden),
           "--heads",
           text(setup.model.heads),
           "--context",
           text(setup.model.sequence),
           "--batch",
           text(setup.batch),
           "--bucket",
           text(setup.bucket.bytes),
           "--steps",
           text(steps)});
  std::ifstream file(scratch.file("result"));
  ordered_json const result = ordered_json::parse(file);
  return median(result.at("stages").at(0).at("step_seconds").get<std::vector<double>>());
}

double seconds_of(std::vector<Timing> const& timings, std::string_view name) {
  for (Timing const& one : timings) {
    if (one.name == name) return one.seconds.front();
  }
  zero::fail(zero::ErrorKind::invalid_argument, {"a round without '", name, "'"});
}

Round sit(HereOptions const& options, Scratch const& scratch) {
  Round round{.machine = calibrate("fp32", {1, 2}, options.seconds), .runs = all_runs()};
  for (Run& run : round.runs) {
    run.seconds = train(options, scratch, run.setup, predict(round.machine, run.setup));
  }
  auto const again = witnesses(2);
  round.triad = seconds_of(again, "triad");
  round.ping_pong = seconds_of(again, "ping-pong");
  return round;
}

ordered_json json_of(Round const& round) {
  ordered_json runs = ordered_json::array();
  for (Run const& run : round.runs) {
    Setup const& s = run.setup;
    runs.push_back({{"name", run.name},
                    {"ranks", s.ranks},
                    {"stage", s.policies.stage},
                    {"layers", s.model.layers},
                    {"hidden", s.model.hidden},
                    {"heads", s.model.heads},
                    {"sequence", s.model.sequence},
                    {"batch", s.batch},
                    {"bucket", s.bucket.bytes},
                    {"seconds", run.seconds}});
  }
  return {{"calibration", json_of(round.machine)},
          {"runs", std::move(runs)},
          {"triad", round.triad},
          {"ping-pong", round.ping_pong}};
}

Round round_of(nlohmann::json const& json) {
  using example::whole_number;
  Round round{.machine = machine_of(json.at("calibration")),
              .runs = {},
              .triad = json.at("triad"),
              .ping_pong = json.at("ping-pong")};
  if (!round.machine.timings.contains(2)) {
    zero::fail(zero::ErrorKind::invalid_argument, "a round is measured with 2 ranks");
  }
  constexpr std::size_t one = 1;
  constexpr std::size_t most = one << 30;
  for (nlohmann::json const& run : json.at("runs")) {
    Setup setup{.model = {.layers = whole_number(run, "layers", 1, 100'000),
                          .hidden = whole_number(run, "hidden", one, most),
                          .heads = whole_number(run, "heads", one, most),
                          .vocab = 256,
                          .sequence = whole_number(run, "sequence", one, most)},
                .ranks = whole_number(run, "ranks", 1, most_ranks),
                .policies = {.stage = run.at("stage"), .precision = round.machine.precision},
                .batch = whole_number(run, "batch", one, most),
                .bucket = {whole_number(run, "bucket", one, one << 40)}};
    double const seconds = run.at("seconds");
    if (!(seconds > 0.)) {
      zero::fail(zero::ErrorKind::invalid_argument,
                 {"a step takes above 0 seconds, not ", seconds});
    }
    round.runs.push_back({run.at("name"), setup, seconds});
  }
  return round;
}

/// Is the machine what it was when the round began?
bool same_machine(Round const& round) {
  auto const& before = round.machine.timings.at(2);
  auto const same = [&](std::string_view name, double after) {
    return std::abs(after / seconds_of(before, name) - 1.) <= tolerance;
  };
  return same("triad", round.triad) && same("ping-pong", round.ping_pong);
}

Report report_of(std::vector<Round> const& rounds) {
  Table every{.name = "rounds",
              .title = "All rounds that were kept: seconds of a step",
              .columns = {"round", "run", "predicted", "measured", "error"},
              .rows = {}};
  Table summary{.name = "errors",
                .title = "Errors, without their signs",
                .columns = {"run", "times", "median", "median with its sign", "at most"},
                .rows = {}};
  std::vector<std::string> names;
  std::map<std::string, std::vector<double>> errors;
  std::uint64_t kept = 0;
  auto const milliseconds = [](double seconds) {
    return Cell(fixed(seconds * 1e3, 2) + " ms", seconds);
  };
  for (Round const& round : rounds) {
    if (!same_machine(round)) continue;
    ++kept;
    for (Run const& run : round.runs) {
      double const predicted = predict(round.machine, run.setup);
      double const error = predicted / run.seconds - 1.;
      every.rows.push_back({kept,
                            run.name,
                            milliseconds(predicted),
                            milliseconds(run.seconds),
                            percent(error, true)});
      if (!errors.contains(run.name)) names.push_back(run.name);
      errors[run.name].push_back(error);
    }
  }
  std::vector<double> all;
  auto const summarise = [&](std::string const& name, std::vector<double> const& of) {
    std::vector<double> sizes;
    for (double const error : of) sizes.push_back(std::abs(error));
    summary.rows.push_back({name,
                            static_cast<std::uint64_t>(of.size()),
                            percent(median(sizes)),
                            percent(median(of), true),
                            percent(*std::max_element(sizes.begin(), sizes.end()))});
  };
  for (std::string const& name : names) {
    summarise(name, errors[name]);
    all.insert(all.end(), errors[name].begin(), errors[name].end());
  }
  if (!all.empty()) summarise("all", all);
  Table counts{.name = "counts",
               .title = "Rounds",
               .columns = {"kept", "discarded"},
               .rows = {{kept, static_cast<std::uint64_t>(rounds.size()) - kept}}};
  Report report;
  report.head = {
      "Steps of train_gpt on this machine, predicted by kernels and collectives alone:",
      "calibration runs no training, so that every run is held out.",
      "A round is discarded where triad or ping-pong differ by more than 15 % after it."};
  report.tables = {std::move(every), std::move(summary), std::move(counts)};
  report.notes = {"A run: ranks x stage, blocks x width, sequences of a rank x tokens, bucket."};
  return report;
}

std::vector<Round> read_rounds(std::string const& path) {
  return read_json(path, "validate-plan here --save", [](nlohmann::json const& all) {
    std::vector<Round> rounds;
    for (nlohmann::json const& one : all.at("rounds")) rounds.push_back(round_of(one));
    return rounds;
  });
}

/// Rounds, or those that were recorded, with all predictions and errors.
Report validate_here(HereOptions const& options) {
  if (!options.recorded.empty()) return report_of(read_rounds(options.recorded));
  Scratch const scratch;
  std::vector<Round> rounds;
  ordered_json saved = ordered_json::array();
  // A machine that is never at rest ends this too.
  for (int kept = 0; kept < options.rounds && std::ssize(rounds) < 3 * options.rounds;) {
    rounds.push_back(sit(options, scratch));
    bool const same = same_machine(rounds.back());
    kept += same ? 1 : 0;
    std::fprintf(stderr,
                 "round %zu: %s, %d of %d kept\n",
                 rounds.size(),
                 same ? "kept" : "discarded",
                 kept,
                 options.rounds);
    if (options.save.empty()) continue;
    saved.push_back(json_of(rounds.back()));
    write_text(options.save, ordered_json{{"rounds", saved}}.dump() + "\n");
  }
  return report_of(rounds);
}

}  // namespace

void add_here(CLI::App& app, Command& command) {
  auto const options = std::make_shared<HereOptions>();
  CLI::App* const sub = add_command(
      app, command, "here", "Calibrates this machine and runs train_gpt, alternately", [options] {
        return validate_here(*options);
      });
  HereOptions& rounds = *options;
  sub->add_option("--rounds", rounds.rounds, "Rounds to keep (20)")->check(CLI::Range(1, 1000));
  sub->add_option("--seconds", rounds.seconds, "Of a calibration (12)")
      ->check(CLI::Range(0.1, 3600.));
  sub->add_option("--run-seconds", rounds.run, "Of training in a run (1)")
      ->check(CLI::Range(0.01, 3600.));
  sub->add_option("--train-gpt", rounds.train_gpt, "The program (default: as built with this one)");
  auto* const save = sub->add_option("--save", rounds.save, "File for all that was measured");
  sub->add_option(
         "--recorded", rounds.recorded, "Predict what such a file has, and measure nothing")
      ->check(CLI::ExistingFile)
      ->excludes(save);
}

}  // namespace plan
