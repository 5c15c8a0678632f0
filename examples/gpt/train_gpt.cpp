#include "report.hpp"
#include "run.hpp"

#include <CLI/CLI.hpp>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

extern "C" void request_stop(int) {
  stop_requested = true;
  // A second Ctrl-C ends the program at once.
  std::signal(SIGINT, SIG_DFL);
}

constexpr int exit_usage = 2;
constexpr int exit_failure = 1;
constexpr int exit_interrupted = 130;

void add_options(CLI::App& app, gpt::Options& options) {
  app.add_option(
         "--text", options.text, "Files to learn from (default: include/zero and README.md)")
      ->check(CLI::ExistingFile);
  app.add_option("--ranks", options.ranks, "Ranks, as threads of this process")
      ->check(CLI::Range(1, zero::InProcess::max_ranks));
  app.add_option("--stage", options.stage, "What is partitioned")
      ->check(CLI::IsMember({"none", "pos", "pos+g", "pos+g+p"}));
  app.add_option("--precision", options.precision, "Parameters and gradients")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--layers", options.model.layers, "Transformer blocks")
      ->check(CLI::Range(1, 1000));
  app.add_option("--heads", options.model.heads, "Attention heads")->check(CLI::Range(1, 1024));
  app.add_option("--channels", options.model.channels, "Width of the residual stream")
      ->check(CLI::Range(1, 65536));
  app.add_option("--context", options.model.context, "Longest sequence, in bytes")
      ->check(CLI::Range(1, 65536));
  app.add_option("--batch", options.batch, "Sequences per rank and micro-batch")
      ->check(CLI::Range(1, 65536));
  app.add_option("--accumulate", options.accumulate, "Micro-batches per rank and step")
      ->check(CLI::Range(1, 65536));
  app.add_option("--steps", options.steps, "Optimizer steps")->check(CLI::Range(1, 100000000));
  app.add_option("--lr", options.learning_rate, "Peak learning rate")->check(CLI::PositiveNumber);
  app.add_option("--clip", options.clip, "Clip the gradient to this norm")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of initial weights, batches and samples");
  app.add_option("--json", options.json, "Write losses, bytes and traffic to this file");
  app.add_flag("--compare", options.compare, "Train under all four stages and compare");
  app.add_option("--sample", options.sample, "Bytes to generate after training")
      ->check(CLI::Range(0, 1000000));
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

gpt::Text read_text(gpt::Options const& options) {
  auto const names = options.text.empty() ? default_text() : options.text;
  for (auto const& name : names) {
    if (std::filesystem::file_size(name) == 0) throw std::runtime_error(name + " is empty");
  }
  std::vector<std::filesystem::path> const files(names.begin(), names.end());
  gpt::Text text = gpt::load_text(files);
  auto const context = static_cast<std::size_t>(options.model.context);
  if (text.training.size() <= context) {
    throw std::runtime_error("the text has " + std::to_string(text.training.size()) +
                             " bytes to train on, fewer than the " + std::to_string(context + 1) +
                             " that a context of " + std::to_string(context) + " needs");
  }
  return text;
}

/// A line that rewrites itself on a terminal, and one in twenty steps elsewhere.
gpt::ShowProgress progress_line(std::string const& stage, int steps) {
  bool const terminal = isatty(STDERR_FILENO) == 1;
  int const every = terminal ? 1 : std::max(1, steps / 20);
  return [=](gpt::Progress const& at) {
    if (at.step % every != 0 && at.step != 1 && at.step != steps) return;
    std::fprintf(stderr,
                 "%s%-8s step %d/%d  loss %.4f  %.0f tokens/s  grad norm %.3f%s%s",
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

int train(gpt::Options options) {
  static_cast<void>(gpt::tensors(options.model));
  gpt::Text const text = read_text(options);
  std::signal(SIGINT, request_stop);
  std::vector<std::string> stages{options.stage};
  if (options.compare) stages = {"none", "pos", "pos+g", "pos+g+p"};
  std::vector<gpt::StageResult> results;
  for (auto const& stage : stages) {
    if (stop_requested) break;
    options.stage = stage;
    results.push_back(gpt::run(options, text, stop_requested, progress_line(stage, options.steps)));
  }
  bool const whole = !stop_requested && results.size() == stages.size();
  bool const same = gpt::bit_identical(results);
  std::printf("%s", gpt::comparison_table(results).c_str());
  if (options.compare && whole) {
    std::printf("losses and parameters are %s under all stages\n",
                same ? "bit-identical" : "NOT bit-identical");
  }
  for (auto const& result : results) {
    if (!result.sample.empty()) {
      std::printf("--- sample (%s)\n%s\n", result.stage.c_str(), result.sample.c_str());
    }
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << gpt::to_json(results) << std::flush;
    if (!file) throw std::runtime_error("cannot write " + options.json);
  }
  if (!whole) {
    std::fprintf(stderr, "interrupted\n");
    return exit_interrupted;
  }
  return options.compare && !same ? exit_failure : 0;
}

}  // namespace

int main(int argc, char** argv) {
  gpt::Options options;
  CLI::App app{
      "Trains a byte-level GPT with its optimizer partitioned over ranks in one process.\n"
      "--json writes {stages: [{stage, ranks, precision, losses, bytes_per_rank: {planned, held},\n"
      "elements_per_step: {predicted, counted}, tokens_per_s}], bit_identical}."};
  app.option_defaults()->always_capture_default();
  add_options(app, options);
  try {
    app.parse(argc, argv);
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return exit_usage;
  }
  try {
    return train(options);
  } catch (std::exception const& error) {
    std::fprintf(stderr, "train_gpt: %s\n", error.what());
    return exit_failure;
  }
}
