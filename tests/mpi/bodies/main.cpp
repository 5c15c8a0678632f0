// A unit that says nothing has bodies of its own, beside others that share theirs.
#include "facts.hpp"
#include "given.hpp"

#include <cstdio>

Facts here(MPI_Comm world);
Facts elsewhere(MPI_Comm world);

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  Facts const mine = facts(MPI_COMM_WORLD);
  bool const same = here(MPI_COMM_WORLD) == mine && elsewhere(MPI_COMM_WORLD) == mine;
  bool sound = mine.planned && mine.refused && mine.sum == 3.;
  {
    zero::Mpi<> comm(MPI_COMM_WORLD);
    sound = sound && sum_of(comm, comm.rank() + 1.) == 3.;
  }
  std::puts(same && sound ? "all units agree" : "units disagree about the library");
  MPI_Finalize();
  return same && sound ? 0 : 1;
}
