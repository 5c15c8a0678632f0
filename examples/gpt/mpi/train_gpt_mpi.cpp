#include "../run_rank.hpp"
#include "job.hpp"
#include "world.hpp"

#include <map>

namespace {

struct Settings {
  gpt::Options training;
  std::size_t shared_mib = 256;
  double deadline_s = 600;
  zero::mpi::Sums sums = zero::mpi::Sums::automatic;
};

void print_transport(zero::mpi::Transport const& in_use, int ranks) {
  std::fprintf(stderr,
               "%d rank%s on %d node%s; shared window: %s\n%s\n",
               ranks,
               ranks == 1 ? "" : "s",
               in_use.nodes,
               in_use.nodes == 1 ? "" : "s",
               in_use.window ? "yes" : "no",
               in_use.library.c_str());
}

int train(Settings& settings, gpt::Text const& text) {
  gpt::MpiWorld world(MPI_COMM_WORLD,
                      {.deadline_s = settings.deadline_s,
                       .shared_bytes = settings.shared_mib * zero::MiB,
                       .sums = settings.sums});
  try {
    if (world.rank() == 0) print_transport(world.transport(), world.size());
    int const status = gpt::train(
        settings.training,
        text,
        [&](gpt::Options const& options, auto const&... arguments) {
          gpt::MpiMemory const memory{gpt::RankMemory(options.budget, world.allocator())};
          return gpt::run_rank(world, memory, options, arguments...);
        },
        world.rank() == 0);
    world.close();
    return status;
  } catch (std::exception const& error) {
    bool const original = world.report_failure(error.what());
    // All ranks know the same sentence by now, and the first to say it ends the job: the one where
    // it went wrong, if that is still alive. mpirun takes its time to end the others.
    if (!original) std::this_thread::sleep_for(std::chrono::seconds(2 + world.rank()));
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app{
      "Trains a byte-level GPT with its optimizer partitioned over the processes of mpirun.\n"
      "--json writes what train_gpt --json writes, with the same losses."};
  app.option_defaults()->always_capture_default();
  app.add_option("--shared-mib", settings.shared_mib, "Shared memory per rank for the optimizer")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--deadline", settings.deadline_s, "Seconds until a silent rank is given up on")
      ->check(CLI::PositiveNumber);
  std::map<std::string, zero::mpi::Sums> const sums{{"automatic", zero::mpi::Sums::automatic},
                                                    {"flat", zero::mpi::Sums::flat},
                                                    {"chained", zero::mpi::Sums::chained}};
  app.add_option("--sums", settings.sums, "How sums go between nodes; losses are the same")
      ->transform(CLI::CheckedTransformer(sums))
      ->default_str("automatic");
  return gpt::run_job(
      "train_gpt_mpi", app, argc, argv, settings.training, [&](gpt::Text const& text) {
        return train(settings, text);
      });
}
