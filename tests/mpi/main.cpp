#define DOCTEST_CONFIG_IMPLEMENT
#include "support/test.hpp"
#include "zero/comm/mpi.hpp"

#include <mpi.h>

namespace {

/// True if a communicator is refused because MPI is not running.
bool is_refused() {
  try {
    zero::Mpi<> comm(MPI_COMM_WORLD);
  } catch (zero::Error const& error) {
    return std::string(error.what()).find("MPI is not running") != std::string::npos;
  }
  return false;
}

}  // namespace

/// Every process runs every test; the job fails if any process fails.
int main(int argc, char** argv) {
  if (!is_refused()) return 2;
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  doctest::Context context(argc, argv);
  // Of five summaries that are printed at once, anything can come out: the others tell of failures.
  context.setOption("minimal", rank != 0);
  int const result = context.run();
  if (result != 0) {
    std::fflush(nullptr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  // One that is never closed and outlives MPI: only its memory is given back.
  std::optional<zero::Mpi<>> unclosed(std::in_place, MPI_COMM_WORLD);
  zero::Mpi<>::Ticket none;
  unclosed->wait(none);
  MPI_Finalize();
  unclosed.reset();
  return is_refused() ? 0 : 3;
}
