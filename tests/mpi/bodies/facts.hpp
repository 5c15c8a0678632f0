#pragma once

#include <zero/comm/mpi.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

/// What one translation unit gets from the library on this rank; every unit must get the same.
struct Facts {
  double sum = 0.;
  int neighbours = 0;  ///< ranks in this rank's half
  int nodes = 0;
  std::size_t left = 0;  ///< of the window, while a block of it is in use
  std::uint64_t held = 0;
  bool planned = false;  ///< was as much planned, at least?
  bool refused = false;  ///< is a group not closed while a block is in use?
  friend bool operator==(Facts const&, Facts const&) = default;
};

/// Static, so that each unit answers for itself instead of for the copy the linker kept.
[[nodiscard]] static inline Facts facts(MPI_Comm world) {
  using Comm = zero::Mpi<>;
  Comm::Options const options{.deadline_s = 60., .shared_bytes = 8192};
  Comm comm(world, options);
  Facts result;
  std::vector<double> values(1000, comm.rank() + 1.);
  zero::run(comm,
            {.op = zero::Op::all_reduce,
             .dtype = zero::DType::f64,
             .accumulate = zero::DType::f64,
             .count = values.size(),
             .send = values.data(),
             .recv = values.data()});
  result.sum = values[999];
  Comm half = comm.split(comm.rank() % 2, comm.rank(), "half");
  result.neighbours = half.size();
  half.close();
  zero::mpi::SharedAllocator allocator = comm.allocator();
  void* const block = allocator.allocate(1024, 64);
  result.left = comm.transport().shared_left;
  result.nodes = comm.transport().nodes;
  result.held = comm.held();
  result.planned = Comm::planned_bytes(options, comm.size(), result.nodes) >= result.held;
  try {
    comm.close();
  } catch (zero::Error const&) {
    result.refused = true;
  }
  allocator.deallocate(block, 1024, 64);
  comm.close();
  return result;
}
