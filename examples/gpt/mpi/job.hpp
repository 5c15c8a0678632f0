/// @file
/// What a trainer does on every process of mpirun before and after it trains.
#pragma once

#include "../command.hpp"

#include <CLI/CLI.hpp>
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <thread>

namespace gpt {

/// What came of reading arguments and text: a status to end with, or a text to train on.
struct Start {
  std::optional<int> status;
  std::string message;
  Text text;
};

inline Start start(CLI::App& app, int argc, char** argv, Options const& options) {
  try {
    app.parse(argc, argv);
    return {{}, {}, prepare(options)};
  } catch (CLI::ParseError const& error) {
    if (error.get_exit_code() == 0) return {0, app.help(), {}};
    return {exit_usage, error.what(), {}};
  } catch (std::exception const& error) {
    return {exit_failure, error.what(), {}};
  }
}

/// Ends the program on every rank if it has to end on any, before anything is shared; the first
/// such rank speaks. Collective over MPI_COMM_WORLD.
inline std::optional<int> agree(std::string const& name, Start const& mine, int rank, int size) {
  int speaker = mine.status ? rank : size;
  MPI_Allreduce(MPI_IN_PLACE, &speaker, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (speaker == size) return {};
  int status = mine.status.value_or(0);
  MPI_Bcast(&status, 1, MPI_INT, speaker, MPI_COMM_WORLD);
  if (rank == speaker && status == 0) std::printf("%s", mine.message.c_str());
  if (rank == speaker && status != 0) {
    std::fprintf(stderr, "%s: rank %d: %s\n", name.c_str(), rank, mine.message.c_str());
  }
  return status;
}

/// What main returns. Initializes MPI, and ends it.
/// @param name     of the program
/// @param options  whose `ranks` are written before anything is read
/// @param app      has the options of its own, which write to `options`
/// @param train    trains on the text, and returns the status
inline int run_job(std::string const& name,
                   CLI::App& app,
                   int argc,
                   char** argv,
                   Options& options,
                   std::function<int(Text const&)> const& train) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &options.ranks);
  add_options(app, options);
  Start const ready = start(app, argc, argv, options);
  std::optional<int> status = agree(name, ready, rank, options.ranks);
  if (!status) {
    // mpirun sends SIGTERM, and soon after SIGKILL, when it is told to stop.
    stop_on(SIGINT);
    stop_on(SIGTERM);
    try {
      status = train(ready.text);
    } catch (std::exception const& error) {
      std::fprintf(stderr, "%s: rank %d: %s\n", name.c_str(), rank, error.what());
      std::fflush(nullptr);
      // MPICH's launcher forgets what it has not passed on when a rank ends the job.
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      MPI_Abort(MPI_COMM_WORLD, exit_failure);
    }
  }
  MPI_Finalize();
  return status.value_or(exit_failure);
}

}  // namespace gpt
