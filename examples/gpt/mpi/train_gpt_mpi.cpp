#include "../command.hpp"
#include "../run_rank.hpp"
#include "world.hpp"

#include <CLI/CLI.hpp>
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <thread>

namespace {

struct Settings {
  gpt::Options training;
  std::size_t shared_mib = 256;
  double deadline_s = 600;
  zero::mpi::Sums sums = zero::mpi::Sums::automatic;
};

/// What came of reading arguments and text: a status to end with, or a text to train on.
struct Start {
  std::optional<int> status;
  std::string message;
  gpt::Text text;
};

Start start(int argc, char** argv, int ranks, Settings& settings) {
  settings.training.ranks = ranks;
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
  gpt::add_options(app, settings.training);
  try {
    app.parse(argc, argv);
    return {{}, {}, gpt::prepare(settings.training)};
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return {0, app.help(), {}};
    return {gpt::exit_usage, error.what(), {}};
  } catch (std::exception const& error) {
    return {gpt::exit_failure, error.what(), {}};
  }
}

/// Ends the program on every rank if it has to end on any, before anything is shared; the first
/// such rank speaks. Collective over MPI_COMM_WORLD.
std::optional<int> agree(Start const& mine, int rank, int size) {
  int speaker = mine.status ? rank : size;
  MPI_Allreduce(MPI_IN_PLACE, &speaker, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (speaker == size) return {};
  int status = mine.status.value_or(0);
  MPI_Bcast(&status, 1, MPI_INT, speaker, MPI_COMM_WORLD);
  if (rank == speaker && status == 0) std::printf("%s", mine.message.c_str());
  if (rank == speaker && status != 0) {
    std::fprintf(stderr, "train_gpt_mpi: rank %d: %s\n", rank, mine.message.c_str());
  }
  return status;
}

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
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Settings settings;
  Start const ready = start(argc, argv, size, settings);
  std::optional<int> status = agree(ready, rank, size);
  if (!status) {
    // mpirun sends SIGTERM, and soon after SIGKILL, when it is told to stop.
    gpt::stop_on(SIGINT);
    gpt::stop_on(SIGTERM);
    try {
      status = train(settings, ready.text);
    } catch (std::exception const& error) {
      std::fprintf(stderr, "train_gpt_mpi: rank %d: %s\n", rank, error.what());
      std::fflush(nullptr);
      // MPICH's launcher forgets what it has not passed on when a rank ends the job.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      MPI_Abort(MPI_COMM_WORLD, gpt::exit_failure);
    }
  }
  MPI_Finalize();
  return status.value_or(gpt::exit_failure);
}
