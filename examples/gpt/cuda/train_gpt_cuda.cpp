#include "command.hpp"
#include "run_gpu.hpp"

#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  gpt::Options options;
  options.ranks = 1;
  bool nccl = false;
  CLI::App app{
      "Trains a byte-level GPT in the memory of GPUs, with its optimizer partitioned over ranks of "
      "one process.\n--json writes what train_gpt --json writes."};
  app.option_defaults()->always_capture_default();
  app.add_option("--ranks", options.ranks, "Ranks, as threads that share the first GPU")
      ->check(CLI::Range(1, 64));
  app.add_flag("--nccl", nccl, "A GPU for each rank, over NCCL");
  gpt::add_options(app, options);
  return gpt::run_program(
      "train_gpt_cuda", app, argc, argv, options, [&nccl](auto const&... arguments) {
        return nccl ? gpt::run_over_nccl(arguments...) : gpt::run_on_gpu(arguments...);
      });
}
