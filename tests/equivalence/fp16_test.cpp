#include "harness.hpp"

namespace fp16_test {
namespace {

/// Grows after 5 clean steps, so that 25 steps see the scale overflow, shrink and grow again.
zero::Mixed<zero::fp16> lively_scale() { return {.loss_scale = {.growth_interval = 5}}; }

template <class Stage>
void all_ranks() {
  for (int const ranks : {1, 2, 3, 4, 5, 8}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, std::size_t{1} << 22}) {
      toy::check_equal(toy::Setup<Stage, zero::Mixed<zero::fp16>>{.precision = lively_scale()},
                       {.ranks = ranks,
                        .bucket_bytes = bucket,
                        .max_norm = 5.,
                        .fault = {.step = 17, .micro_batch = ranks - 1}});
    }
  }
}

TEST_CASE("fp16 with overflows: stage x ranks x bucket equals the reference [full]") {
  all_ranks<zero::stage::Replicated>();
  all_ranks<zero::stage::Pos>();
  all_ranks<zero::stage::PosG>();
  all_ranks<zero::stage::PosGP>();
}

TEST_CASE("fp16: the runs do overflow, recover and grow") {
  auto const outcome = toy::reference(
      toy::Setup<zero::stage::PosG, zero::Mixed<zero::fp16>>{.precision = lively_scale()},
      {.ranks = 2, .fault = {.step = 17}});
  CHECK(outcome.skipped[0]);
  CHECK(outcome.skipped[17]);
  std::size_t skipped = 0;
  for (bool const step : outcome.skipped) skipped += step ? 1 : 0;
  CHECK(skipped > 2);
  CHECK(skipped < 20);
}

}  // namespace
}  // namespace fp16_test
