/// @file
/// Defines zero/c_mpi.h. To be included where zero/c/define.hpp is.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/config.hpp"
#include "zero/c/communicator.hpp"
#include "zero/c/handles.hpp"
#include "zero/c/structs.hpp"
#include "zero/c_mpi.h"
#include "zero/comm/mpi.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace zero::inline ZERO_NAMESPACE::c {

/// A process; its optimizers' memory is in the node's window, if it is asked for.
class MpiRank final : public RankOf<Mpi<>> {
 public:
  /// Takes over the communicator.
  MpiRank(Mpi<> comm, bool window)
      : RankOf<Mpi<>>(std::move(comm)),
        allocator_(window ? inner().allocator() : mpi::SharedAllocator()) {}

  /// @cond
  void* allocate(std::size_t bytes, std::size_t alignment) override {
    return allocator_.allocate(bytes, alignment);
  }
  void deallocate(void* memory, std::size_t bytes, std::size_t alignment) noexcept override {
    allocator_.deallocate(memory, bytes, alignment);
  }
  /// @endcond

 private:
  mpi::SharedAllocator allocator_;
};

}  // namespace zero::inline ZERO_NAMESPACE::c

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
    zero_mpi_options given = zero_mpi_options_of();
    if (options != nullptr) {
      c::require_struct(options, "zero_mpi_options");
      given = *options;
    }
    mpi::Options inner;
    if (given.deadline_s != 0.) inner.deadline_s = given.deadline_s;
    if (given.shared_bytes != 0) {
      inner.shared_bytes = c::unsigned_of(given.shared_bytes, "shared_bytes");
    }
    if (given.progress_thread != 0) inner.progress_thread = mpi::ProgressThread::multiple;
    c::hand_out(comm, std::make_unique<c::MpiRank>(Mpi<>(world, inner), given.window != 0));
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
