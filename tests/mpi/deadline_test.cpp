/// Who is given up on, when, and by which name.
#include "mpi/world.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>
#include <mpi.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace deadline_test {
namespace {

using mpi_tests::contains;
using mpi_tests::error_of;
using mpi_tests::Route;
using zero::Op;
using Clock = std::chrono::steady_clock;

TEST_CASE("a group's deadline passes while another group of the family is busy") {
  if (mpi_tests::world_size() < 2) return;
  auto options = mpi_tests::options(Route::window);
  options.deadline_s = 1.5;
  zero::Mpi<> comm(MPI_COMM_WORLD, options);
  zero::Mpi<> part = comm.split(0, comm.rank());
  auto const began = Clock::now();
  auto const seconds = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
  // Until the family fails, or rank 0 has had enough of waiting for that.
  std::string busy;
  std::thread other([&] {
    busy = error_of([&] {
      for (int more = 1; more != 0;) {
        if (part.rank() == 0 && seconds() > 10) more = 0;
        zero::run(part,
                  {.op = Op::broadcast,
                   .dtype = zero::DType::i32,
                   .count = 1,
                   .send = &more,
                   .recv = &more});
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
  });
  if (comm.rank() != 1) {
    std::string const text = error_of(
        [&] { zero::run(comm, {.op = Op::all_gather, .dtype = zero::DType::u8, .bucket = 3}); });
    CHECK(contains(text, "rank 1 did not arrive"));
    CHECK(contains(text, "bucket 3"));
    CHECK(seconds() < 8);
  }
  other.join();
  CHECK(contains(busy, "rank 1 did not arrive"));
  MPI_Barrier(MPI_COMM_WORLD);
}

/// What the ranks that wait for a reduction of MPI's are told when rank 1 goes away after `calls`.
std::string native_hang(int calls) {
  auto options = mpi_tests::options(Route::exchange);
  options.deadline_s = 1;
  zero::Mpi<zero::mpi::Native> comm(MPI_COMM_WORLD, options);
  // Several chunks: MPI cannot finish without rank 1.
  std::vector<float> const send(5'000'000, 1.f);
  std::vector<float> first(send.size());
  std::vector<float> second(send.size());
  bool const hangs = comm.rank() == 1;
  std::string const text = error_of([&] {
    zero::Collective op{.op = Op::all_reduce, .count = send.size(), .send = send.data()};
    op.recv = first.data();
    op.bucket = 5;
    auto a = comm.start(op);
    if (hangs && calls == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
    op.recv = second.data();
    op.bucket = 6;
    auto b = comm.start(op);
    if (hangs && calls == 2) std::this_thread::sleep_for(std::chrono::seconds(3));
    comm.wait(a);
    comm.wait(b);
  });
  MPI_Barrier(MPI_COMM_WORLD);
  return text;
}

TEST_CASE("Native: a rank that MPI waits for is named if it is behind; else nobody is blamed") {
  if (mpi_tests::world_size() < 2) return;
  std::string const behind = native_hang(1);
  INFO(behind);
  CHECK(contains(behind, "rank 1 did not arrive"));
  CHECK(contains(behind, "bucket 6"));
  std::string const unknown = native_hang(2);
  INFO(unknown);
  CHECK(contains(unknown, "some rank fell silent"));
  CHECK(contains(unknown, "MPI does not tell which rank"));
  CHECK(contains(unknown, "bucket 5"));
}

}  // namespace
}  // namespace deadline_test
