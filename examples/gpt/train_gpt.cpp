#include "command.hpp"
#include "run.hpp"
#include "zero/zero.hpp"

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  gpt::Options options;
  CLI::App app{
      "Trains a byte-level GPT with its optimizer partitioned over ranks in one process.\n"
      "--json writes {stages: [{stage, ranks, precision, rule, first_step, losses,\n"
      "grad_norms, checksum, bytes_per_rank: {planned, held}, tokens_per_s, step_seconds,\n"
      "elements_per_step: {predicted, counted}, ...}], bit_identical};\n"
      "with --capacity [{configuration, blocks, parameters, ...}]."};
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks, "Ranks, as threads of this process")
      ->check(CLI::Range(1, zero::InProcess::max_ranks));
  gpt::add_options(app, options, gpt::precision_names());
  app.add_option("--rule", options.rule, "Of the update; each is compiled with some precisions")
      ->check(CLI::IsMember(gpt::rule_names()));
  app.add_flag(
         "--capacity",
         options.capacity,
         "Find the most blocks that train within --budget under C1 to C5, by runs of two steps")
      ->needs("--budget")
      ->excludes("--compare", "--save", "--resume", "--export");
  return gpt::run_program("train_gpt", app, argc, argv, options, gpt::run);
}
