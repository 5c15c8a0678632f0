#include "harness.hpp"

namespace accumulation_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

template <class Stage, class Precision, class Accumulation>
using Accumulating = toy::Setup<Stage, Precision, zero::AdamW, Accumulation>;

toy::Run const plain{.ranks = 3, .micro_steps = 3, .bucket_bytes = 12345};
toy::Run const weighted{
    .ranks = 2, .micro_steps = 4, .bucket_bytes = 1, .max_norm = 4., .weighted = true};

TEST_CASE("micro-batches in full gradients equal the reference under every stage") {
  using Full = zero::AccumulateFull;
  toy::check_equal(Accumulating<zero::stage::Replicated, zero::Fp32, Full>{}, plain);
  toy::check_equal(Accumulating<zero::stage::Pos, Bf16, Full>{}, weighted);
  toy::check_equal(Accumulating<zero::stage::PosG, Fp16, Full>{}, plain);
  toy::check_equal(Accumulating<zero::stage::PosGP, zero::Fp32, Full>{}, weighted);
}

TEST_CASE("micro-batches in the reduced shard equal the reference under every stage") {
  using Shard = zero::AccumulateShard;
  toy::check_equal(Accumulating<zero::stage::Replicated, Bf16, Shard>{}, plain);
  toy::check_equal(Accumulating<zero::stage::Pos, zero::Fp32, Shard>{}, weighted);
  toy::check_equal(Accumulating<zero::stage::PosG, Bf16, Shard>{}, weighted);
  toy::check_equal(Accumulating<zero::stage::PosGP, Fp16, Shard>{}, plain);
}

// Without a tied tensor: its uses add up within a micro-batch first on four ranks, but one after
// the other on one rank, which is another order of additions.
TEST_CASE("fp32: one rank with four micro-batches equals four ranks with one") {
  using Full = zero::AccumulateFull;
  for (bool const token_weights : {false, true}) {
    toy::Run one{.ranks = 1, .micro_steps = 4, .weighted = token_weights};
    toy::Run four{.ranks = 4, .micro_steps = 1, .weighted = token_weights};
    one.max_norm = four.max_norm = 4.;
    one.tied = four.tied = false;
    auto const alone =
        toy::check_equal(Accumulating<zero::stage::Replicated, zero::Fp32, Full>{}, one);
    auto const together =
        toy::check_equal(Accumulating<zero::stage::PosGP, zero::Fp32, Full>{}, four);
    CHECK(toy::differing_bits(alone, together) == 0);
    CHECK(alone.norms == together.norms);
  }
}

}  // namespace
}  // namespace accumulation_test
