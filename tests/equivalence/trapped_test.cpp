#include "trapped.hpp"

namespace trapped_test {
namespace {

using Owned = zero::Owned<trapped::Allocator>;

template <class Precision>
Precision lively() {
  if constexpr (Precision::loss_scaled) {
    return {.loss_scale = {.growth_interval = 3}};
  } else {
    return {};
  }
}

template <class Stage, class Precision>
void all_ranks() {
  using S = toy::Setup<Stage, Precision, zero::AdamW, zero::AccumulateNone, Owned>;
  S const setup{.precision = lively<Precision>()};
  for (int const ranks : {1, 2, 4}) {
    toy::check_on_devices(setup,
                          {.ranks = ranks,
                           .steps = 9,
                           .bucket_bytes = 12345,
                           .max_norm = ranks == 2 ? toy::Run{}.max_norm : 5.,
                           .fault = {.step = 7, .micro_batch = ranks - 1}});
  }
}

template <class Stage>
void all_precisions() {
  all_ranks<Stage, zero::Fp32>();
  all_ranks<Stage, zero::Mixed<zero::bf16>>();
  all_ranks<Stage, zero::Mixed<zero::fp16>>();
}

TEST_CASE("on a device replicated training equals the reference, and only reports cross") {
  all_precisions<zero::stage::Replicated>();
}
TEST_CASE("on a device Pos equals the reference, and only reports cross") {
  all_precisions<zero::stage::Pos>();
}
TEST_CASE("on a device Pos+g equals the reference, and only reports cross") {
  all_precisions<zero::stage::PosG>();
}
TEST_CASE("on a device Pos+g+p equals the reference, and only reports cross") {
  all_precisions<zero::stage::PosGP>();
}

}  // namespace
}  // namespace trapped_test
