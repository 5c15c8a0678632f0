/// @file
/// Defines zero/c_mpi.h. To be included where zero/c/define.hpp is.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/c/handles.hpp"
#include "zero/c/rank.hpp"
#include "zero/c/structs.hpp"
#include "zero/c_mpi.h"
#include "zero/comm/mpi.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

extern "C" {

int32_t zero_mpi(MPI_Comm world,
                 zero_mpi_options const* options,
                 zero_comm** comm,
                 char* message,
                 int64_t size) {
  using namespace zero;
  return c::attempt({message, size}, [&] {
    c::require(comm, "comm");
    *comm = nullptr;
    zero_mpi_options const from = c::struct_or(options, zero_mpi_options_of(), "zero_mpi_options");
    mpi::Options inner;
    if (from.deadline_s != 0.) inner.deadline_s = from.deadline_s;
    if (from.shared_bytes != 0) {
      inner.shared_bytes = c::unsigned_of(from.shared_bytes, "shared_bytes");
    }
    if (from.progress_thread != 0) inner.progress_thread = mpi::ProgressThread::multiple;
    Mpi<> made(world, inner);
    // Optimizers' memory is in the node's window, if it is asked for.
    mpi::SharedAllocator const allocator =
        from.window != 0 ? made.allocator() : mpi::SharedAllocator();
    c::hand_out(
        comm, std::make_unique<c::RankOf<Mpi<>, mpi::SharedAllocator>>(std::move(made), allocator));
  });
}
int32_t zero_mpi_f(MPI_Fint world,
                   zero_mpi_options const* options,
                   zero_comm** comm,
                   char* message,
                   int64_t size) {
  return zero_mpi(MPI_Comm_f2c(world), options, comm, message, size);
}

}  // extern "C"
