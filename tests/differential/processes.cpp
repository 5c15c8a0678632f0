/// Random cases on the processes of a job, by all routes in turn.
#include "differential/program.hpp"
#include "mpi/world.hpp"

#include <mpi.h>

#include <cstdio>
#include <iterator>

namespace {

class Processes : public differential::World {
 public:
  [[nodiscard]] int most_ranks() const override { return mpi_tests::world_size(); }
  void run(int ranks, std::uint64_t seed, differential::Body const& body) override {
    auto const route = mpi_tests::routes[seed / 7 % std::size(mpi_tests::routes)];
    mpi_tests::with_group(ranks, route, [&](auto& comm) {
      differential::AnyCommunicator any(
          comm, zero::space::Host{}, differential::AnyAllocator(comm.allocator()));
      body.on_host(any);
    });
  }
  [[nodiscard]] bool leads() const override { return mpi_tests::world_rank() == 0; }
  [[nodiscard]] bool survives() const override { return false; }
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  Processes world;
  int const status = differential::run_program(world, argc, argv);
  std::fflush(nullptr);
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
  return status;
}
