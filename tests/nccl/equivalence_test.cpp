/// Training over NCCL's ordered sums gives the reference's bits, and sends what the plan says.
#include "equivalence/harness.hpp"
#include "nccl/world.hpp"
#include "zero/zero.hpp"

#include <doctest/doctest.h>

namespace equivalence_test {
namespace {

using toy::Setup;
using Bf16 = zero::Mixed<zero::bf16>;

/// Threads as processes of a fake NCCL.
struct World {
  bool separate = false;

  template <class Body>
  void run(int ranks, Body const& body) const {
    fake::World world(ranks, 11);
    zero::nccl::Options options = fake::quick_options();
    options.separate_gathers = separate;
    // Small enough that buckets are summed in pieces, with a rest.
    options.staging_bytes = 8 << 10;
    options.registration =
        separate ? zero::nccl::Registration::windows : zero::nccl::Registration::none;
    fake::run_group<zero::nccl::Ordered>(
        world, ranks, options, [&](auto& comm) { body(comm, comm.allocator()); });
    fake::check_clean(world);
  }
};

template <class S>
void check(int ranks, bool separate) {
  INFO("separate " << separate);
  toy::check_clipped<S>(World{separate}, ranks);
}

template <class Precision>
void every_stage(int ranks) {
  check<Setup<zero::stage::Replicated, Precision>>(ranks, false);
  check<Setup<zero::stage::Pos, Precision>>(ranks, true);
  check<Setup<zero::stage::PosG, Precision>>(ranks, false);
  check<Setup<zero::stage::PosGP, Precision>>(ranks, true);
}

TEST_CASE("Nccl, ordered: fp32 training under every stage has the reference's bits") {
  for (int const ranks : {1, 2, 3}) every_stage<zero::Fp32>(ranks);
}
TEST_CASE("Nccl, ordered: bf16 training under every stage has the reference's bits") {
  for (int const ranks : {2, 4}) every_stage<Bf16>(ranks);
}

TEST_CASE("Nccl, ordered: other policies, micro-steps and lent memory have the reference's bits") {
  using zero::stage::PosG;
  using zero::stage::PosGP;
  check<Setup<PosG, zero::Fp32, zero::Adagrad, zero::AccumulateFull>>(3, false);
  check<Setup<PosGP, zero::Mixed<zero::fp16>, zero::Lion, zero::AccumulateShard>>(2, true);
  using Lent = zero::Borrowed<>;
  check<Setup<zero::stage::Pos, Bf16, zero::Sgd, zero::AccumulateNone, Lent>>(3, true);
}

}  // namespace
}  // namespace equivalence_test
