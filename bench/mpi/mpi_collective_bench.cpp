/// Collectives between processes: how much faster than the MPI library's own, how close to memory?
/// Buffers are in the shared window; with `--ordinary` outside of it. `--help` lists the options.
///
/// usage: mpirun -np N mpi_collective_bench [OPTION]...
#include "../command.hpp"
#include "job.hpp"
#include "zero/base/dtype.hpp"
#include "zero/bench.hpp"

#include <cstddef>
#include <string_view>

namespace {

using zero::Collective;
using zero::DType;
using zero::Op;

/// What the library has no sum for.
template <class T>
void add(void* in, void* out, int* count, MPI_Datatype*) {
  auto* const to = static_cast<T*>(out);
  for (int i = 0; i < *count; ++i) {
    to[i] = static_cast<T>(static_cast<float>(to[i]) +
                           static_cast<float>(static_cast<T const*>(in)[i]));
  }
}

struct Library {
  static constexpr std::string_view name = "the MPI library's own";

  Library() {
    MPI_Op_create(&add<zero::bf16>, 1, &sums[0]);
    MPI_Op_create(&add<zero::fp16>, 1, &sums[1]);
  }
  Library(Library const&) = delete;
  Library& operator=(Library const&) = delete;
  ~Library() {
    for (MPI_Op& sum : sums) MPI_Op_free(&sum);
  }

  void operator()(zero::Mpi<>&, Collective const& op) const {
    bool const wide = op.dtype == DType::f32;
    MPI_Datatype const type = wide ? MPI_FLOAT : MPI_UINT16_T;
    MPI_Op const sum = wide ? MPI_SUM : sums[op.dtype == DType::bf16 ? 0 : 1];
    auto const count = static_cast<int>(op.count);
    MPI_Comm const world = MPI_COMM_WORLD;
    switch (op.op) {
      case Op::reduce_scatter:
        MPI_Reduce_scatter_block(op.send, op.recv, count, type, sum, world);
        break;
      case Op::all_gather: MPI_Allgather(op.send, count, type, op.recv, count, type, world); break;
      case Op::all_to_all: MPI_Alltoall(op.send, count, type, op.recv, count, type, world); break;
      case Op::all_reduce: MPI_Allreduce(op.send, op.recv, count, type, sum, world); break;
      case Op::broadcast: MPI_Bcast(op.recv, count, type, op.root, world); break;
    }
  }

  MPI_Op sums[2];
};

}  // namespace

int main(int argc, char** argv) {
  return bench::run_job(argc, argv, [&](bench::Job const& job) {
    bench::Command const command = bench::read_command(argc, argv, job.rank);
    if (command.status) return *command.status;
    zero::Mpi<> comm(MPI_COMM_WORLD, {.shared_bytes = zero::GiB});
    Library library;
    int const status = command.ordinary
                           ? zero::bench::collectives(
                                 argc, argv, comm, command.cases, library, zero::HostAllocator())
                           : zero::bench::collectives(argc, argv, comm, command.cases, library);
    comm.close();
    return status;
  });
}
