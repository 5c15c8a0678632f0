// Processes of an MPI job train under every stage: the same bits, and LibTorch's own averaging.
#include "libtorch/sharded_model.hpp"
#include <zero/comm/mpi.hpp>

#include <doctest/doctest.h>
#include <mpi.h>

namespace processes {

using namespace libtorch_tests;

TEST_CASE("processes have the same bits under every stage, and LibTorch's own averaged training") {
  at::set_num_threads(1);
  zero::Mpi<> comm(MPI_COMM_WORLD, {.deadline_s = 60, .shared_bytes = 16 * zero::MiB});
  using namespace zero::stage;
  Run const run{.ranks = comm.size()};
  auto const bytes = run.sharded_on(comm, PosGP{});
  CHECK(run.sharded_on(comm, Replicated{}) == bytes);
  CHECK(run.sharded_on(comm, Pos{}) == bytes);
  CHECK(run.sharded_on(comm, PosG{}) == bytes);
  check_trained<Net>(bytes, run.libtorch());

  Run const twice{.ranks = comm.size(), .micro_batches = 2};
  auto const added = twice.sharded_on(comm, PosGP{}, zero::AccumulateFull{});
  CHECK(twice.sharded_on(comm, PosG{}, zero::AccumulateFull{}) == added);
  check_trained<Net>(added, twice.libtorch());

  Run const in_bf16{.ranks = comm.size(), .type = torch::kBFloat16};
  auto const mixed = in_bf16.sharded_on(comm, PosGP{}, zero::Mixed<zero::bf16>{});
  CHECK(in_bf16.sharded_on(comm, PosG{}, zero::Mixed<zero::bf16>{}) == mixed);
  Net untouched;
  untouched->to(torch::kBFloat16);
  CHECK(mixed != bytes_of(*untouched));
  comm.close();
}

}  // namespace processes
