// Under MPI_THREAD_FUNNELED only the thread that called MPI_Init_thread may call MPI.
#include <zero/comm/mpi.hpp>

#include <mpi.h>

#include <cstdio>
#include <string>
#include <thread>

namespace {

/// What construction is refused with; empty if it is not.
std::string refused() {
  try {
    zero::Mpi<> comm(MPI_COMM_WORLD);
    static_cast<void>(zero::sum(comm, 1));
    comm.close();
  } catch (zero::Error const& error) {
    return error.what();
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  std::string other;
  std::thread([&] { other = refused(); }).join();
  std::string const own = refused();
  MPI_Finalize();
  bool const right = provided > MPI_THREAD_FUNNELED
                         ? other.empty()
                         : other.find("MPI_THREAD_FUNNELED") != std::string::npos;
  if (right && own.empty()) return 0;
  std::printf("another thread: '%s'; the first one: '%s'\n", other.c_str(), own.c_str());
  return 1;
}
