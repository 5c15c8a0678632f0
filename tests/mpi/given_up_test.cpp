/// What is given up: ranks that do not come, by which name and when, and buffers that others read.
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"

#include <mpi.h>

namespace given_up_test {
namespace {

using mpi_tests::collective;
using mpi_tests::contains;
using mpi_tests::error_of;
using mpi_tests::Route;
using mpi_tests::sleep_ms;
using mpi_tests::Stopwatch;
using zero::Op;

TEST_CASE("a group's deadline passes while another group of the family is busy") {
  if (mpi_tests::world_size() < 2) return;
  auto options = mpi_tests::options(Route::window);
  options.deadline_s = 1.5;
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  zero::Mpi<> part = comm.split(0, comm.rank());
  Stopwatch const watch;
  // Until the family fails, or rank 0 has had enough of waiting for that.
  std::string busy;
  std::thread other([&] {
    busy = error_of([&] {
      for (int more = 1; more != 0; sleep_ms(5)) {
        if (part.rank() == 0 && watch.seconds() > 10) more = 0;
        zero::run(part, collective(Op::broadcast, 1, &more, &more));
      }
    });
  });
  if (comm.rank() != 1) {
    std::string const text = error_of(
        [&] { zero::run(comm, {.op = Op::all_gather, .dtype = zero::DType::u8, .bucket = 3}); });
    CHECK(contains(text, "rank 1 did not arrive"));
    CHECK(contains(text, "bucket 3"));
    CHECK(watch.seconds() < 8);
  }
  other.join();
  CHECK(contains(busy, "rank 1 did not arrive"));
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("ranks that wait for groups in different orders are told so, and nobody is blamed") {
  if (mpi_tests::world_size() < 2) return;
  for (Route const route : {Route::window, Route::exchange}) {
    auto options = mpi_tests::options(route);
    options.deadline_s = 1;
    mpi_tests::with_first(2, [&](MPI_Comm pair) {
      zero::Mpi<> comm(pair, options);
      zero::Mpi<> part = comm.split(0, comm.rank());
      zero::Mpi<>& first = comm.rank() == 0 ? comm : part;
      zero::Mpi<>& second = comm.rank() == 0 ? part : comm;
      int const mine = comm.rank();
      std::vector<int> all(2);
      Stopwatch const watch;
      std::string const text = error_of([&] {
        zero::run(first, collective(Op::all_gather, 1, &mine, all.data()));
        zero::run(second, collective(Op::all_gather, 1, &mine, all.data()));
      });
      CHECK_MESSAGE(contains(text, "ranks 0, 1 wait for each other"), text);
      CHECK(contains(text, "groups in different orders"));
      CHECK(watch.seconds() < 2);
    });
  }
}

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
  // Rank 0 adds what it and rank 1 give rank 2, which is elsewhere.
  mpi_tests::with_first(3, [](MPI_Comm three) {
    zero::Mpi<> comm(three, mpi_tests::options(Route::chain_of_nodes));
    constexpr std::size_t count = 3000;
    mpi_tests::Pooled<> const send(comm, 3 * count);
    send.set(1.f);
    std::vector<float> recv(count, 0.f);
    auto const op = collective(Op::reduce_scatter, count, send.data(), recv.data());
    auto const work = [&] {
      for (Stopwatch const watch; watch.seconds() < 0.2;) comm.progress();
    };
    if (comm.rank() == 1) {
      try {
        auto const ticket = comm.start(op);
        throw 1;
      } catch (int) {
        send.set(-1.f);
      }
      tell(0);
      tell(2);
      hear(2);
      comm.report_failure("the disk is full");
      return;
    }
    // Rank 0 adds once all three have started, which is after the buffer was given up.
    if (comm.rank() == 2) hear(1);
    auto ticket = comm.start(op);
    hear(comm.rank() == 0 ? 1 : 0);
    work();
    if (comm.rank() == 2) {
      CHECK(mpi_tests::wrong_of(count, [&](std::size_t i) { return recv[i] == 0.f; }) == 0);
    }
    tell(comm.rank() == 0 ? 2 : 1);
    CHECK(contains(error_of([&] { comm.wait(ticket); }), "rank 1 failed: the disk is full"));
  });
}

}  // namespace
}  // namespace given_up_test
