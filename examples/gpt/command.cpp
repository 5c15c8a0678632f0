#include "command.hpp"

#include "available.hpp"
#include "base_file.hpp"
#include "capacity.hpp"
#include "configurations.hpp"
#include "report.hpp"
#include "zero/zero.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace gpt {

namespace {

std::atomic<bool> stopped{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

extern "C" void request_stop(int signal) {
  stopped = true;
  // A second Ctrl-C ends the program at once.
  std::signal(signal, SIG_DFL);
}

/// The repository's own text, in an order that does not depend on the file system.
std::vector<std::string> default_text() {
  namespace fs = std::filesystem;
  if (!fs::is_directory("include/zero")) {
    throw std::runtime_error("there is no include/zero here; name files with --text");
  }
  std::vector<std::string> files;
  for (auto const& entry : fs::recursive_directory_iterator("include/zero")) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  if (fs::is_regular_file("README.md")) files.emplace_back("README.md");
  std::sort(files.begin(), files.end());
  return files;
}

/// What a grid of ranks cannot be.
void check_grid(Options const& options) {
  auto const refuse = [&](std::string const& why) {
    throw std::runtime_error("--model-parallel " + std::to_string(options.model_parallel) + why);
  };
  if (options.ranks % options.model_parallel != 0) {
    refuse(" does not divide " + std::to_string(options.ranks) +
           (options.ranks == 1 ? " rank" : " ranks"));
  }
  if (Config::vocab % options.model_parallel != 0) {
    refuse(" does not divide the vocabulary, and an optimizer wants parts of one shape");
  }
}

/// A line that rewrites itself on a terminal, and one in twenty steps elsewhere.
ShowProgress progress_line(std::string const& stage, int steps) {
  bool const terminal = isatty(STDERR_FILENO) == 1;
  int const every = terminal ? 1 : std::max(1, steps / 20);
  return [=](Progress const& at) {
    if (!at.note.empty()) {
      std::fprintf(stderr, "%s%s\n", terminal ? "\r\033[K" : "", at.note.c_str());
      return;
    }
    if (at.step % every != 0 && at.step != 1 && at.step != steps) return;
    std::fprintf(stderr,
                 "%s%-10s step %d/%d  loss %.4f  %.0f tokens/s  grad norm %.3f%s%s",
                 terminal ? "\r\033[K" : "",
                 stage.c_str(),
                 at.step,
                 steps,
                 at.loss,
                 at.tokens_per_s,
                 at.grad_norm,
                 at.skipped ? "  (overflow, skipped)" : "",
                 terminal && at.step != steps ? "" : "\n");
  };
}

}  // namespace

void stop_on(int signal) { std::signal(signal, request_stop); }

void add_options(CLI::App& app, Options& options, std::vector<std::string> const& precisions) {
  app.add_option(
         "--text", options.text, "Files to learn from (default: include/zero and README.md)")
      ->check(CLI::ExistingFile);
  app.add_option("--model-parallel",
                 options.model_parallel,
                 "Ranks that hold a model together, each some heads and part of the vocabulary")
      ->check(CLI::Range(1, 1024));
  app.add_option("--stage", options.stage, "What is sharded (none: replicated, until zero 0.4)")
      ->check(CLI::IsMember({"replicated", "pos", "pos+g", "pos+g+p", "none"}));
  app.add_option("--precision", options.precision, "Parameters, gradients and master weights")
      ->check(CLI::IsMember(precisions));
  app.add_option("--layers", options.model.layers, "Transformer blocks")
      ->check(CLI::Range(1, 1000));
  app.add_option("--heads", options.model.heads, "Attention heads")->check(CLI::Range(1, 1024));
  app.add_option("--channels", options.model.channels, "Width of the residual stream")
      ->check(CLI::Range(1, 65536));
  app.add_option("--context", options.model.context, "Longest sequence, in bytes")
      ->check(CLI::Range(1, 65536));
  app.add_option("--batch", options.batch, "Sequences per model and micro-batch")
      ->check(CLI::Range(1, 65536));
  app.add_option("--accumulate", options.accumulate, "Micro-batches per model and step")
      ->check(CLI::Range(1, 65536));
  app.add_option("--bucket", options.bucket, "Bytes that travel together, such as 64KiB")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--activations",
                 options.activations,
                 "Of blocks, until the backward pass: keep all, or the inputs alone and recompute; "
                 "partitioned: each model-parallel rank has its share of the inputs; +host: in the "
                 "slower memory")
      ->check(CLI::IsMember({"keep", "recompute", "partitioned", "partitioned+host"}));
  app.add_option("--steps", options.steps, "Optimizer steps")->check(CLI::Range(1, 100000000));
  app.add_option("--lr", options.learning_rate, "Peak learning rate")->check(CLI::PositiveNumber);
  app.add_option("--clip", options.clip, "Clip the gradient to this norm")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of initial weights, batches and samples");
  app.add_option("--json", options.json, "Write losses, bytes and traffic to this file");
  auto* const compare =
      app.add_flag("--compare{stages}",
                   options.compare,
                   "Train under all four stages and compare; --compare=configurations: under C1 to "
                   "C5 of the paper, each of which is a stage and a place for activations")
          ->check(CLI::IsMember({"stages", "configurations"}));
  app.add_option("--budget",
                 options.budget,
                 "Bytes a rank may hold, such as 8MiB: more is an error. Counts all but the slower "
                 "memory and what the communicator holds; 0: no limit, or with C1 to C5 32MiB")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--sample", options.sample, "Bytes to generate after training")
      ->check(CLI::Range(0, 1000000));
  auto* const save = app.add_option("--save",
                                    options.save,
                                    "Save a checkpoint in this directory at the end, and at SIGINT "
                                    "or SIGTERM, which then end the program with status 0")
                         ->excludes(compare);
  app.add_option("--save-every", options.save_every, "Save after every so many steps, too")
      ->check(CLI::Range(1, 100000000))
      ->needs(save);
  app.add_option("--keep", options.keep, "Checkpoints to keep, the newest (0: all)")
      ->check(CLI::Range(0, 100000000))
      ->needs(save);
  app.add_flag("--async-save", options.async_save, "Train on while a checkpoint is written")
      ->needs(save);
  app.add_option("--export", options.export_file, "Write the trained model as a safetensors file")
      ->excludes(compare);
  app.add_option("--resume", options.resume, "Go on from the newest checkpoint in this directory");
  auto* const base =
      app.add_option("--base", options.base, "Fine-tune this model, which --export has written");
  app.add_option("--lora",
                 options.lora,
                 "Rank of the adapters that are trained, while the base is frozen in 8 bits")
      ->check(CLI::Range(1, 65536))
      ->needs(base);
}

Text prepare(Options const& options) {
  bool const configurations = options.capacity || options.compare == "configurations";
  if (configurations && options.model_parallel == 1) {
    throw std::runtime_error("C1 to C5 differ in what ranks of a model share: --model-parallel 2");
  }
  static_cast<void>(tensors(options.model, {.rank = 0, .size = options.model_parallel}));
  bool const plain = options.save.empty() && options.resume.empty() && options.export_file.empty();
  if (!has_checkpoints && !plain) {
    throw std::runtime_error(
        "built without checkpoints: --save, --resume and --export need libxxhash-dev and "
        "-DZERO_WITH_CHECKPOINT=ON");
  }
  check_grid(options);
  if (options.base.empty() != (options.lora == 0)) {
    throw std::runtime_error("--base needs --lora, such as --lora 8: the base itself is frozen");
  }
  if (options.lora > 0 && options.model_parallel > 1) {
    throw std::runtime_error(
        "--lora needs --model-parallel 1: a rank computes with all of a unit's base");
  }
  if (options.model_parallel == 1 && options.activations == "partitioned") {
    throw std::runtime_error(
        "--activations partitioned shares them out over --model-parallel ranks");
  }
  if (!options.save.empty()) std::filesystem::create_directories(options.save);
  if (!options.save.empty() && access(options.save.c_str(), W_OK) != 0) {
    throw std::runtime_error("cannot write to " + options.save);
  }
  auto const folder = std::filesystem::path(options.export_file).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder)) {
    throw std::runtime_error("cannot export to " + options.export_file + ": there is no " +
                             folder.string());
  }
  auto const names = options.text.empty() ? default_text() : options.text;
  for (auto const& name : names) {
    if (std::filesystem::file_size(name) == 0) throw std::runtime_error(name + " is empty");
  }
  std::vector<std::filesystem::path> const files(names.begin(), names.end());
  Text text = load_text(files);
  if (options.lora > 0) text.base = BaseFile(options.base).identify(options.model);
  auto const context = static_cast<std::size_t>(options.model.context);
  if (text.training.size() <= context) {
    throw std::runtime_error("the text has " + std::to_string(text.training.size()) +
                             " bytes to train on, fewer than the " + std::to_string(context + 1) +
                             " that a context of " + std::to_string(context) + " needs");
  }
  return text;
}

namespace {

/// The runs to compare, or the one that is asked for.
std::vector<Options> runs(Options const& options) {
  std::vector<Options> all;
  if (options.compare == "configurations") {
    for (auto const& configuration : configurations()) {
      all.push_back(configured(options, configuration));
      if (options.budget == 0) all.back().budget = 32 * zero::MiB;
    }
  } else {
    all.push_back(options);
    if (options.stage == "none") all.back().stage = "replicated";
    if (options.compare == "stages") {
      all.resize(4, options);
      all[0].stage = "replicated", all[1].stage = "pos", all[2].stage = "pos+g";
      all[3].stage = "pos+g+p";
    }
  }
  return all;
}

void write_json(Options const& options, std::string const& json) {
  if (options.json.empty()) return;
  std::ofstream file(options.json);
  file << json << std::flush;
  if (!file) throw std::runtime_error("cannot write " + options.json);
}

int show_capacity(Options options, Text const& text, Run const& run) {
  options.steps = 2;
  auto const found = find_capacity(
      options, [&](Options const& trial) { return run(trial, text, stopped, ShowProgress()); });
  if (!found) {
    std::fprintf(stderr, "interrupted\n");
    return exit_interrupted;
  }
  std::printf("%s", capacity_table(*found).c_str());
  write_json(options, to_json(*found));
  return 0;
}

}  // namespace

int train(Options const& options, Text const& text, Run const& run, bool print) {
  if (options.capacity) return show_capacity(options, text, run);
  if (print && options.stage == "none") {
    std::fprintf(stderr,
                 "--stage none is called --stage replicated now; zero 0.4 will refuse none\n");
  }
  std::vector<StageResult> results;
  bool whole = true;
  for (Options const& one : runs(options)) {
    auto const& title = one.configuration.empty() ? one.stage : one.configuration;
    results.push_back(
        run(one, text, stopped, print ? progress_line(title, one.steps) : ShowProgress()));
    // The ranks have agreed on it; a signal may have reached one of them only.
    whole = !results.back().interrupted;
    if (!whole) break;
  }
  bool const same = bit_identical(results);
  int const interrupted = options.save.empty() ? exit_interrupted : 0;
  int const status = !whole ? interrupted : !options.compare.empty() && !same ? exit_failure : 0;
  if (!print) return status;
  std::printf("%s", comparison_table(results).c_str());
  if (!options.compare.empty() && whole) {
    std::printf("losses and parameters are %s under all %s\n",
                same ? "bit-identical" : "NOT bit-identical",
                options.compare.c_str());
    if (options.compare == "stages" && results[3].tokens_per_s < results[2].tokens_per_s) {
      std::printf(
          "Pos+g+p is slower than Pos+g here, because it gathers the parameters of every layer "
          "twice in each step,\nand this model computes too little to hide that\n");
    }
  }
  for (auto const& result : results) {
    if (!result.sample.empty()) {
      std::printf("--- sample (%s)\n%s\n", result.stage.c_str(), result.sample.c_str());
    }
  }
  write_json(options, to_json(results));
  if (!whole) std::fprintf(stderr, "interrupted\n");
  return status;
}

int run_program(std::string const& name,
                CLI::App& app,
                int argc,
                char** argv,
                Options const& options,
                Run const& run) {
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return exit_usage;
  }
  try {
    Text const text = prepare(options);
    stop_on(SIGINT);
    stop_on(SIGTERM);
    return train(options, text, run);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s: %s\n", name.c_str(), error.what());
    return exit_failure;
  }
}

}  // namespace gpt
