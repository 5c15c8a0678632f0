// A reduce-scatter from `start` to `wait` on two ranks, each a node, that say which functions they
// enter: built without optimisation, and instrumented. tests/house/walk.py reads what is printed.
#include "zero/comm/mpi.hpp"

#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

constexpr std::size_t capacity = 1 << 18;
void* entered[capacity];
std::size_t count = 0;
bool recorded = false;

}  // namespace

// What the compiler calls at the beginning and the end of every function.
extern "C" {
__attribute__((no_instrument_function)) void __cyg_profile_func_enter(void* function, void*) {
  if (recorded && count < capacity) entered[count++] = function;
}
__attribute__((no_instrument_function)) void __cyg_profile_func_exit(void*, void*) {}
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  {
    zero::Mpi<> comm(MPI_COMM_WORLD, {.deadline_s = 60, .node = rank, .shared_bytes = 1 << 20});
    std::vector<float> const send(200'000, 1.f);
    std::vector<float> recv(100'000);
    zero::Collective const op{.op = zero::Op::reduce_scatter,
                              .count = recv.size(),
                              .send = send.data(),
                              .recv = recv.data()};
    recorded = true;
    zero::Mpi<>::Ticket ticket = comm.start(op);
    comm.wait(ticket);
    recorded = false;
    comm.close();
  }
  // One after the other; addresses less that of a function whose name the script knows.
  auto const known = reinterpret_cast<std::intptr_t>(&__cyg_profile_func_enter);
  std::vector<std::int64_t> places;
  for (std::size_t i = 0; i < count; ++i) {
    places.push_back(reinterpret_cast<std::intptr_t>(entered[i]) - known);
  }
  for (int turn = 0; turn < 2; ++turn) {
    auto size = static_cast<int>(places.size());
    MPI_Bcast(&size, 1, MPI_INT, turn, MPI_COMM_WORLD);
    std::vector<std::int64_t> told(static_cast<std::size_t>(size));
    if (rank == turn) told = places;
    MPI_Bcast(told.data(), size, MPI_INT64_T, turn, MPI_COMM_WORLD);
    for (std::size_t i = 0; rank == 0 && i < told.size(); ++i) {
      std::printf("transfer %d %lld\n", turn, static_cast<long long>(told[i]));
    }
  }
  MPI_Finalize();
  return count < capacity ? 0 : 1;
}
