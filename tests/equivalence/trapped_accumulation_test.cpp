#include "trapped.hpp"

namespace trapped_accumulation_test {
namespace {

using Owned = zero::Owned<trapped::Allocator>;
using Borrowed = zero::Borrowed<trapped::Allocator>;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;

template <class Stage, class Precision, class Accumulation, class Memory>
void all_ranks(int micro_steps) {
  toy::Setup<Stage, Precision, zero::AdamW, Accumulation, Memory> setup;
  // Either way to lend, in turn.
  setup.flat = Stage::sharding.optimizer;
  // The toy model's gradients would overflow for steps on end from the default on.
  if constexpr (Precision::loss_scaled) setup.precision.loss_scale.initial = 64.f;
  for (int const ranks : {1, 2, 4}) {
    toy::check_on_devices(setup,
                          {.ranks = ranks,
                           .micro_steps = micro_steps,
                           .steps = 6,
                           .bucket_bytes = 12345,
                           .max_norm = 4.,
                           .weighted = micro_steps > 1,
                           .fault = {.step = 2, .micro_batch = micro_steps * ranks - 1}});
  }
}

TEST_CASE("on a device micro-steps add up in full gradients") {
  all_ranks<zero::stage::Replicated, Bf16, zero::AccumulateFull, Owned>(3);
  all_ranks<zero::stage::PosG, Fp16, zero::AccumulateFull, Owned>(3);
}

TEST_CASE("on a device micro-steps add up in the reduced share") {
  all_ranks<zero::stage::Replicated, Bf16, zero::AccumulateShard, Owned>(3);
  all_ranks<zero::stage::PosG, zero::Fp32, zero::AccumulateShard, Owned>(3);
  all_ranks<zero::stage::PosGP, Fp16, zero::AccumulateShard, Owned>(3);
}

TEST_CASE("on a device tensors are lent as anywhere") {
  all_ranks<zero::stage::Replicated, Fp16, zero::AccumulateNone, Borrowed>(1);
  all_ranks<zero::stage::Pos, Bf16, zero::AccumulateNone, Borrowed>(1);
  all_ranks<zero::stage::PosG, zero::Fp32, zero::AccumulateNone, Borrowed>(1);
}

}  // namespace
}  // namespace trapped_accumulation_test
