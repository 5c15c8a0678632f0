/// What the library does between two calls of MPI's, watched from inside of them.
#include "mpi/world.hpp"
#include "zero/concepts/communicator.hpp"

#include <doctest/doctest.h>
#include <mpi.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace {

using mpi_tests::Route;
using zero::Op;

/// Where the library keeps its requests to send; null while nobody wants to know.
std::vector<MPI_Request*>* sends = nullptr;

}  // namespace

// MPI lets a program put itself between its callers and the library.
extern "C" int MPI_Isend(void const* data,
                         int count,
                         MPI_Datatype type,
                         int target,
                         int tag,
                         MPI_Comm comm,
                         MPI_Request* request) {
  if (sends != nullptr) sends->push_back(request);
  return PMPI_Isend(data, count, type, target, tag, comm, request);
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

}  // namespace
