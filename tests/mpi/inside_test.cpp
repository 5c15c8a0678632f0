/// What the library does between two calls of MPI's, watched from inside of them.
#include "mpi/world.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>
#include <mpi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace {

using mpi_tests::Route;
using zero::Op;

/// Where the library keeps its requests to send; null while nobody wants to know.
std::vector<MPI_Request*>* sends = nullptr;
/// Does MPI refuse this rank a window?
bool refuse_window = false;
/// What this rank gets to see as its part of a window, if it is not null, and its place there.
void* own_window = nullptr;
int own_place = 0;

template <class Call>
std::string error_of(Call const& call) {
  try {
    call();
  } catch (zero::Error const& error) {
    return error.what();
  }
  return "no error";
}

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
    mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), route, [](auto& comm) {
      std::vector<MPI_Request*> requests;
      std::vector<float> values(100'000, static_cast<float>(comm.rank()));
      sends = &requests;
      zero::run(comm,
                {.op = Op::broadcast,
                 .count = values.size(),
                 .send = values.data(),
                 .recv = values.data()});
      auto const held = std::count_if(requests.begin(), requests.end(), [](auto const* request) {
        return *request != MPI_REQUEST_NULL;
      });
      sends = nullptr;
      CHECK(requests.size() >= static_cast<std::size_t>(comm.size()) - 1);
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
      auto const began = std::chrono::steady_clock::now();
      refuse_window = guilty && refused;
      own_window = guilty && !refused ? nothing : nullptr;
      std::string const text = error_of([&] { zero::Mpi<> comm(MPI_COMM_WORLD, options); });
      refuse_window = false;
      own_window = nullptr;
      INFO(text);
      CHECK(text.find("resource") != std::string::npos);
      CHECK(text.find("rank 1: ") != std::string::npos);
      CHECK(text.find(refused ? "MPI cannot share" : "is full") != std::string::npos);
      CHECK(text.find("Options::shared_memory") != std::string::npos);
      CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(8));
    }
  }
  ::munmap(nothing, bytes);
}

TEST_CASE("a split that gets no pages leaves its family in order") {
  if (mpi_tests::world_size() < 2) return;
  mpi_tests::with_group<zero::mpi::Ordered>(mpi_tests::world_size(), Route::window, [](auto& comm) {
    refuse_window = comm.rank() == 1;
    std::string const text = error_of([&] { static_cast<void>(comm.split(0, comm.rank())); });
    refuse_window = false;
    CHECK(text.find("rank 1: MPI cannot share") != std::string::npos);
    zero::run(comm, {.op = Op::all_gather, .dtype = zero::DType::u8});
  });
}

}  // namespace
