/// A buffer that its rank gives up while neighbours add what is in it.
#include "mpi/world.hpp"
#include "zero/comm/mpi.hpp"

#include <doctest/doctest.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace given_up_test {
namespace {

using mpi_tests::error_of;
using mpi_tests::Route;
using zero::Op;

/// Tells a process of the job to go on; waits for being told.
void tell(int rank) {
  int token = 0;
  MPI_Send(&token, 1, MPI_INT, rank, 9, MPI_COMM_WORLD);
}
void hear(int rank) {
  int token = 0;
  MPI_Recv(&token, 1, MPI_INT, rank, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

TEST_CASE("a node's sum is not sent if a buffer in it was given up meanwhile") {
  if (mpi_tests::world_size() < 3) return;
  MPI_Comm three = MPI_COMM_NULL;
  bool const inside = mpi_tests::world_rank() < 3;
  MPI_Comm_split(MPI_COMM_WORLD, inside ? 0 : MPI_UNDEFINED, mpi_tests::world_rank(), &three);
  if (inside) {
    // Rank 0 adds what it and rank 2 give rank 1, which is elsewhere.
    zero::Mpi<zero::mpi::Native> comm(three, mpi_tests::options(Route::two_nodes));
    constexpr std::size_t count = 3000;
    auto allocator = comm.allocator();
    std::size_t const bytes = 3 * count * sizeof(float);
    auto* const send = static_cast<float*>(allocator.allocate(bytes, 64));
    std::fill_n(send, 3 * count, 1.f);
    std::vector<float> recv(count, 0.f);
    zero::Collective const op{
        .op = Op::reduce_scatter, .count = count, .send = send, .recv = recv.data()};
    auto const work = [&] {
      auto const end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (std::chrono::steady_clock::now() < end) comm.progress();
    };
    if (comm.rank() == 2) {
      try {
        auto const ticket = comm.start(op);
        throw 1;
      } catch (int) {
        std::fill_n(send, 3 * count, -1.f);
      }
      tell(0);
      tell(1);
      hear(1);
      comm.report_failure("the disk is full");
    } else {
      // Rank 0 adds once all three have started, which is after the buffer was given up.
      if (comm.rank() == 1) hear(2);
      auto ticket = comm.start(op);
      if (comm.rank() == 0) {
        hear(2);
        work();
        tell(1);
      } else {
        hear(0);
        work();
        CHECK(std::count(recv.begin(), recv.end(), 0.f) == static_cast<std::ptrdiff_t>(count));
        tell(2);
      }
      CHECK(error_of([&] { comm.wait(ticket); }).find("rank 2 failed: the disk is full") !=
            std::string::npos);
    }
    allocator.deallocate(send, bytes, 64);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (inside) MPI_Comm_free(&three);
}

}  // namespace
}  // namespace given_up_test
