/// The beginning and the end of groups: what is refused, and that all ranks are told.
#include "mpi/world.hpp"
#include "support/test.hpp"

#include <mpi.h>

#if defined(MPIPP_H) || defined(MPICXX_INCLUDED)
#error "the library's mpi.h brings MPI's C++ bindings with it"
#endif

namespace life_test {
namespace {

using mpi_tests::collective;
using mpi_tests::contains;
using mpi_tests::error_of;
using mpi_tests::on_all;
using mpi_tests::Route;
using zero::Op;
using zero::mpi::Options;
using zero::mpi::ProgressThread;
using Comm = zero::Mpi<>;

constexpr Options patient{.deadline_s = 20, .shared_bytes = zero::MiB};

/// As messages list them.
std::string all_but_1() {
  std::string text = " on rank 0";
  for (int rank = 2; rank < mpi_tests::world_size(); ++rank) text += " " + std::to_string(rank);
  return text;
}

TEST_CASE("ranks with different options are told so, all of them, at once, and which they are") {
  if (mpi_tests::world_size() < 2) return;
  bool const odd = mpi_tests::world_rank() == 1;
  struct {
    void (*change)(Options& options);
    std::string field, value, odd_value;
  } const rows[] = {
      {[](auto& o) { o.shared_memory = false; }, "shared_memory", "1", "0"},
      {[](auto& o) { o.shared_bytes = 4096; }, "shared_bytes", "1048576", "4096"},
      {[](auto& o) { o.exchange_bytes = 8192; }, "exchange_bytes", "8388608", "8192"},
      {[](auto& o) { o.sums = zero::mpi::Sums::chained; }, "sums", "0", "2"},
      {[](auto& o) { o.message_bytes = 1000; }, "message_bytes", "1073741824", "1000"},
      {[](auto& o) { o.node = 3; }, "node.has_value()", "0", "1"},
  };
  for (auto const& row : rows) {
    Options options = patient;
    if (odd) row.change(options);
    mpi_tests::Stopwatch const watch;
    std::string const text = error_of([&] { Comm comm(MPI_COMM_WORLD, options); });
    CHECK_MESSAGE(contains(text,
                           "ranks disagree on Options::" + row.field + ": " + row.value +
                               all_but_1() + "; " + row.odd_value + " on rank 1"),
                  text);
    CHECK(watch.seconds() < 15);
  }
}

TEST_CASE("who is asked for in a construction that failed does not end the next one") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  int const next = (mpi_tests::world_rank() + 1) % ranks;
  // Nobody is in a construction any more, where it would count.
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Send(nullptr, 0, MPI_BYTE, next, 32'767, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  Comm comm(MPI_COMM_WORLD, patient);
  comm.close();
}

TEST_CASE("ranks that do not come to a construction are named, and nobody else") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 4) return;
  MPI_Comm all = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &all);
  // A parent with handlers of its own: its errors stay the trainer's.
  MPI_Comm_set_errhandler(all, MPI_ERRORS_ARE_FATAL);
  Options options = patient;
  options.deadline_s = 1;
  int const rank = mpi_tests::world_rank();
  // Rank 3 comes when the others have waited for most of the deadline.
  if (rank == 3) mpi_tests::sleep_ms(700);
  if (rank != 1 && rank != 2) {
    mpi_tests::Stopwatch const watch;
    CHECK(contains(error_of([&] { Comm comm(all, options); }),
                   "ranks 1, 2 did not take part in MPI_Comm_idup within 1"));
    CHECK(watch.seconds() < 3);
  }
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(all, &handler);
  CHECK(handler == MPI_ERRORS_ARE_FATAL);
  MPI_Errhandler_free(&handler);
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("a rank of version 0.2 is told apart before anything else, and hears of the others") {
  int const ranks = mpi_tests::world_size();
  if (ranks < 2) return;
  std::int64_t const version = zero::detail::version_number;
  if (mpi_tests::world_rank() != 1) {
    std::string const text = error_of([] { Comm comm(MPI_COMM_WORLD, patient); });
    CHECK(contains(text,
                   "ranks disagree on library version: " + std::to_string(version) + all_but_1() +
                       "; 0 on rank 1"));
    return;
  }
  // What 0.2 does first: node, then Native, and six options.
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm copy = MPI_COMM_NULL;
  MPI_Comm_idup(MPI_COMM_WORLD, &copy, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  using Facts = std::array<std::int64_t, 8>;
  Facts const mine{0, 0, 1, zero::MiB, 8 * zero::MiB, zero::GiB, 0, 0};
  std::vector<Facts> all(static_cast<std::size_t>(ranks));
  int const bytes = sizeof(Facts);
  MPI_Iallgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, copy, &request);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  CHECK(all[0] == Facts{0, version, 1, zero::MiB, 8 * zero::MiB, zero::GiB, 0, 0});
}

TEST_CASE("one rank's negative node is everybody's error") {
  Options options = patient;
  int const guilty = mpi_tests::world_size() - 1;
  options.node = mpi_tests::world_rank() == guilty ? -1 : 0;
  std::string const text = error_of([&] { Comm comm(MPI_COMM_WORLD, options); });
  CHECK(contains(text, "Options::node of rank " + std::to_string(guilty) + " is -1"));
}

TEST_CASE("a family whose thread has to be the only one is alone in its process") {
  Options sole = patient;
  sole.progress_thread = ProgressThread::sole;
  {
    Comm first(MPI_COMM_WORLD, sole);
    CHECK(contains(error_of([] { Comm second(MPI_COMM_WORLD, patient); }), "ProgressThread::sole"));
    CHECK(contains(error_of([&] { Comm second(MPI_COMM_WORLD, sole); }), "ProgressThread::sole"));
    Comm part = first.split(0, first.rank());
    part.close();
    first.close();
    Comm next(MPI_COMM_WORLD, patient);
    CHECK(contains(error_of([&] { Comm third(MPI_COMM_WORLD, sole); }), "1 other families"));
    Comm beside(MPI_COMM_WORLD, patient);
    // Neither is closed: the end of the handles is the end of the families, too.
  }
  Comm last(MPI_COMM_WORLD, sole);
  last.close();
}

TEST_CASE("close is refused while something would outlive it, and works afterwards") {
  on_all(Route::window, [](auto& comm) {
    {
      Comm part = comm.split(0, comm.rank());
      CHECK(contains(error_of([&] { comm.close(); }), "1 groups split from it are open"));
      part.close();
    }
    if (comm.size() == 1) return;
    std::vector<float> const send(100'000, 1.f);
    std::vector<float> recv(send.size() * static_cast<std::size_t>(comm.size()));
    auto const gather = collective(Op::all_gather, send.size(), send.data(), recv.data());
    // Not before this rank has tried is it done anywhere.
    MPI_Barrier(MPI_COMM_WORLD);
    std::optional<Comm::Ticket> ticket;
    if (comm.rank() == 0) {
      ticket = comm.start(gather);
      CHECK(contains(error_of([&] { comm.close(); }), "close() while [all_gather of 100000"));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (!ticket) ticket = comm.start(gather);
    comm.wait(*ticket);
    CHECK(recv.back() == 1.f);
  });
}

TEST_CASE("after close every call says so, and none ends the process") {
  on_all(Route::window, [](auto& outer) {
    zero::Collective const nothing{.op = Op::all_gather, .dtype = zero::DType::u8};
    Comm comm = outer.split(0, outer.rank());
    comm.close();
    std::string const closed = "the MPI communicator is closed";
    CHECK(contains(error_of([&] { static_cast<void>(comm.start(nothing)); }), closed));
    CHECK(contains(error_of([&] { static_cast<void>(comm.split(0, 0)); }), closed));
    CHECK(contains(error_of([&] { static_cast<void>(comm.transport()); }), closed));
    CHECK(contains(error_of([&] { static_cast<void>(comm.allocator()); }), closed));
    CHECK(contains(error_of([&] { comm.close(); }), closed));
    comm.progress();
    CHECK_FALSE(comm.report_failure("too late"));
    Comm::Ticket none;
    comm.wait(none);
    // The family is not.
    zero::run(outer, nothing);
  });
}

TEST_CASE("a rank that closes where others call a collective is said to do that") {
  if (mpi_tests::world_size() < 2) return;
  Comm comm(MPI_COMM_WORLD, patient);
  float const mine = 1;
  std::vector<float> all(static_cast<std::size_t>(comm.size()));
  auto gather = collective(Op::all_gather, 1, &mine, all.data());
  gather.bucket = 4;
  std::string const text =
      error_of([&] { comm.rank() == 1 ? comm.close() : zero::run(comm, gather); });
  CHECK(contains(text, "rank 1 called [close] where rank 0 called [all_gather of 1 "));
  CHECK(contains(text, comm.rank() == 1 ? ", in close" : ", in all_gather, bucket 4"));
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace life_test
