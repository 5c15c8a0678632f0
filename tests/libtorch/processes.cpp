// Processes of an MPI job train under every stage: the same bits, and LibTorch's own averaging.
#include "libtorch/sharded_model.hpp"
#include <zero/comm/mpi.hpp>

#include <doctest/doctest.h>
#include <mpi.h>

#include <cstdint>
#include <vector>

namespace processes {

using namespace libtorch_tests;

template <class Stage, class Accumulation = zero::AccumulateNone, class Precision = zero::Fp32>
std::vector<std::uint8_t> trained(zero::Mpi<>& comm,
                                  int micro_batches = 1,
                                  torch::ScalarType type = torch::kFloat) {
  return trained_on<Stage, Accumulation, Precision>(comm, micro_batches, type);
}

TEST_CASE("processes have the same bits under every stage, and LibTorch's own averaged training") {
  at::set_num_threads(1);
  zero::Mpi<> comm(MPI_COMM_WORLD, {.deadline_s = 60, .shared_bytes = 16 * zero::MiB});
  auto const bytes = trained<zero::stage::PosGP>(comm);
  CHECK(trained<zero::stage::Replicated>(comm) == bytes);
  CHECK(trained<zero::stage::Pos>(comm) == bytes);
  CHECK(trained<zero::stage::PosG>(comm) == bytes);
  CHECK(distance(floats(bytes), reference(comm.size(), 1)) < 1e-5);

  using Full = zero::AccumulateFull;
  auto const added = trained<zero::stage::PosGP, Full>(comm, 2);
  CHECK(trained<zero::stage::PosG, Full>(comm, 2) == added);
  CHECK(distance(floats(added), reference(comm.size(), 2)) < 1e-5);

  using None = zero::AccumulateNone;
  using Mixed = zero::Mixed<zero::bf16>;
  auto const mixed = trained<zero::stage::PosGP, None, Mixed>(comm, 1, torch::kBFloat16);
  CHECK(trained<zero::stage::PosG, None, Mixed>(comm, 1, torch::kBFloat16) == mixed);
  Net untouched;
  untouched->to(torch::kBFloat16);
  CHECK(mixed != bytes_of(*untouched));
  comm.close();
}

}  // namespace processes
