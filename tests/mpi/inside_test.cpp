/// What the library does between two calls of MPI's, watched from inside of them.
#include "mpi/pooled.hpp"
#include "mpi/world.hpp"
#include "support/test.hpp"

#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

namespace inside_test {
namespace {

using mpi_tests::collective;
using mpi_tests::contains;
using mpi_tests::error_of;
using mpi_tests::on_all;
using mpi_tests::Route;
using mpi_tests::Stopwatch;
using zero::Op;
using Comm = zero::Mpi<>;

/// Where the library keeps its requests to send; null while nobody wants to know.
std::vector<MPI_Request*>* sends = nullptr;
/// Does MPI refuse this rank a window?
bool refuse_window = false;
/// What this rank gets to see as its part of a window, if it is not null, and its place there.
void* own_window = nullptr;
int own_place = 0;
/// Done once, at the end of the next MPI_Test or instead of an MPI_Iallgather, before which so many
/// are made.
std::function<void()> in_test;
std::function<int()> instead_of_gather;
int gathers_before = 0;

}  // namespace

// MPI lets a program put itself between its callers and the library.
extern "C" {
int MPI_Isend(void const* data,
              int count,
              MPI_Datatype type,
              int target,
              int tag,
              MPI_Comm comm,
              MPI_Request* request) {
  if (sends != nullptr) sends->push_back(request);
  return PMPI_Isend(data, count, type, target, tag, comm, request);
}
int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  int const code = PMPI_Test(request, done, status);
  if (auto const now = std::exchange(in_test, nullptr)) now();
  return code;
}
int MPI_Iallgather(void const* send,
                   int send_count,
                   MPI_Datatype send_type,
                   void* recv,
                   int recv_count,
                   MPI_Datatype recv_type,
                   MPI_Comm comm,
                   MPI_Request* request) {
  if (instead_of_gather != nullptr && gathers_before-- == 0) {
    return std::exchange(instead_of_gather, nullptr)();
  }
  return PMPI_Iallgather(send, send_count, send_type, recv, recv_count, recv_type, comm, request);
}
int MPI_Win_allocate_shared(
    MPI_Aint bytes, int unit, MPI_Info info, MPI_Comm comm, void* memory, MPI_Win* window) {
  int const code = PMPI_Win_allocate_shared(bytes, unit, info, comm, memory, window);
  return refuse_window ? MPI_ERR_NO_MEM : code;
}
int MPI_Win_shared_query(MPI_Win window, int rank, MPI_Aint* bytes, int* unit, void* memory) {
  int const code = PMPI_Win_shared_query(window, rank, bytes, unit, memory);
  if (own_window != nullptr && rank == own_place) {
    *static_cast<void**>(memory) = own_window;
  }
  return code;
}
}

namespace {

TEST_CASE("a rank whose wait is over has nothing left to send: it may compute without MPI") {
  if (mpi_tests::world_size() < 2) return;
  for (Route const route : {Route::exchange, Route::small_chunks}) {
    on_all(route, [](auto& comm) {
      std::vector<MPI_Request*> requests;
      std::vector<float> values(100'000, static_cast<float>(comm.rank()));
      sends = &requests;
      zero::run(comm, collective(Op::broadcast, values.size(), values.data(), values.data()));
      auto const held = std::count_if(requests.begin(), requests.end(), [](auto const* request) {
        return *request != MPI_REQUEST_NULL;
      });
      sends = nullptr;
      // What the root sends, and what others say to have taken.
      CHECK(requests.size() >= (comm.rank() == 0 ? static_cast<std::size_t>(comm.size()) : 1));
      CHECK(held == 0);
      CHECK(values.back() == 0);
    });
  }
}

TEST_CASE("a rank that gets no window, or no pages for it, fails the others at once, everywhere") {
  if (mpi_tests::world_size() < 2) return;
  bool const guilty = mpi_tests::world_rank() == 1;
  std::size_t const bytes = 256 * zero::MiB;
  // Nothing behind it: as of a file system that is full.
  int const file = ::memfd_create("empty", 0);
  void* const nothing = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  REQUIRE(nothing != MAP_FAILED);
  ::close(file);
  for (Route const route : {Route::window, Route::two_nodes}) {
    for (bool const refused : {true, false}) {
      auto options = mpi_tests::options(route);
      options.deadline_s = 10;
      own_place = route == Route::two_nodes ? mpi_tests::world_rank() / 2 : mpi_tests::world_rank();
      Stopwatch const watch;
      refuse_window = guilty && refused;
      own_window = guilty && !refused ? nothing : nullptr;
      std::string const text = error_of([&] { zero::Mpi<> comm(MPI_COMM_WORLD, options); });
      refuse_window = false;
      own_window = nullptr;
      INFO(text);
      for (char const* const part : {"resource",
                                     "rank 1: ",
                                     refused ? "MPI cannot share" : "is full",
                                     "Options::shared_memory"}) {
        CHECK(contains(text, part));
      }
      CHECK(watch.seconds() < 8);
    }
  }
  ::munmap(nothing, bytes);
}

TEST_CASE("a split that gets no pages leaves its family in order") {
  if (mpi_tests::world_size() < 2) return;
  on_all(Route::window, [](auto& comm) {
    refuse_window = comm.rank() == 1;
    std::string const text = error_of([&] { static_cast<void>(comm.split(0, comm.rank())); });
    refuse_window = false;
    CHECK(contains(text, "rank 1: MPI cannot share"));
    zero::run(comm, {.op = Op::all_gather, .dtype = zero::DType::u8});
  });
}

/// Waits for the other of the first two processes.
void meet() {
  int const other = 1 - mpi_tests::world_rank();
  int token = 0;
  MPI_Sendrecv_replace(&token, 1, MPI_INT, other, 7, other, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/// Rank 0 gives its buffer up by `fail(comm, ticket)` and writes to it while rank 1 is about to
/// read it, having looked for failures already.
/// @return what rank 1's wait says
template <class Fail>
std::string wait_on_changed_buffer(Fail const& fail) {
  std::string text;
  mpi_tests::with_first(2, [&](MPI_Comm pair) {
    Comm comm(pair, mpi_tests::options(Route::window));
    constexpr std::size_t count = 5000;
    mpi_tests::Pooled<> const send(comm, count);
    send.set(1.f);
    std::vector<float> recv(2 * count, 0.f);
    auto const gather = collective(Op::all_gather, count, send.data(), recv.data());
    if (comm.rank() == 1) {
      auto ticket = comm.start(gather);
      meet();
      meet();
      in_test = [] {
        meet();
        meet();
      };
      comm.progress();
      meet();
      // It read what it must not take for a result.
      CHECK(recv[0] == -1.f);
      text = error_of([&] { comm.wait(ticket); });
    } else {
      meet();
      auto ticket = std::make_unique<Comm::Ticket>(comm.start(gather));
      // All that rank 1 still needs is to read.
      CHECK(recv.back() == 1.f);
      meet();
      meet();
      fail(comm, ticket);
      send.set(-1.f);
      meet();
      meet();
      comm.report_failure("the disk is full");
    }
  });
  return text;
}

TEST_CASE("what is read of a buffer that was given up meanwhile is no result") {
  if (mpi_tests::world_size() < 2) return;
  std::string const reported = wait_on_changed_buffer(
      [](Comm& comm, auto& /*ticket*/) { comm.report_failure("the disk is full"); });
  std::string const unwound = wait_on_changed_buffer([](Comm& /*comm*/, auto& ticket) {
    try {
      auto const own = std::move(ticket);
      throw 1;
    } catch (int) {
    }
  });
  if (mpi_tests::world_rank() != 1) return;
  CHECK(contains(reported, "rank 0 failed: the disk is full"));
  CHECK(contains(unwound, "rank 0 failed: the disk is full"));
}

TEST_CASE("ranks on other nodes are told that a call of MPI's was given up") {
  int const last = mpi_tests::world_size() - 1;
  if (last < 2) return;
  auto options = mpi_tests::options(Route::window);
  options.deadline_s = 2;
  options.node = mpi_tests::world_rank();
  Comm comm(MPI_COMM_WORLD, options);
  std::string const given_up =
      "rank " + std::to_string(last) + " did not take part in MPI_Iallgather";
  auto const split = [&] { static_cast<void>(comm.split(comm.rank() == 1 ? 1 : 0, 0)); };
  int token = 0;
  if (comm.rank() == 1) {
    // In another part, and called when the call has been given up.
    split();
    MPI_Recv(&token, 1, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    Stopwatch const watch;
    std::string const text =
        error_of([&] { zero::run(comm, {.op = Op::all_gather, .dtype = zero::DType::u8}); });
    CHECK_MESSAGE(contains(text, given_up), text);
    CHECK(watch.seconds() < 1.5);
  } else if (comm.rank() == last) {
    // The first is of all ranks, about what they have left.
    gathers_before = 1;
    instead_of_gather = [&] {
      MPI_Recv(&token, 1, MPI_INT, 0, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      return MPI_ERR_OTHER;
    };
    CHECK(error_of(split) != "no error");
  } else {
    CHECK(contains(error_of(split), given_up));
    CHECK_FALSE(comm.report_failure("this is known"));
    if (comm.rank() == 0) {
      MPI_Send(&token, 1, MPI_INT, 1, 8, MPI_COMM_WORLD);
      MPI_Send(&token, 1, MPI_INT, last, 8, MPI_COMM_WORLD);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace inside_test
