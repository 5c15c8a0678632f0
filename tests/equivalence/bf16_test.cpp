#include "harness.hpp"

namespace bf16_test {
namespace {

template <class Stage>
void all_ranks() {
  for (int const ranks : {1, 2, 3, 4, 5, 8}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, std::size_t{1} << 22}) {
      toy::check_equal(toy::Setup<Stage, zero::Mixed<zero::bf16>>{},
                       {.ranks = ranks, .bucket_bytes = bucket, .max_norm = 5.});
    }
  }
}

TEST_CASE("bf16: stage x ranks x bucket equals the reference bit for bit [full]") {
  all_ranks<zero::stage::Replicated>();
  all_ranks<zero::stage::Pos>();
  all_ranks<zero::stage::PosG>();
  all_ranks<zero::stage::PosGP>();
}

TEST_CASE("bf16: a step whose gradients are not finite is skipped on every rank") {
  toy::Run const run{
      .ranks = 3, .steps = 6, .bucket_bytes = 5000, .fault = {.step = 3, .micro_batch = 1}};
  auto const outcome =
      toy::reference(toy::Setup<zero::stage::PosG, zero::Mixed<zero::bf16>>{}, run);
  CHECK(outcome.skipped == std::vector<bool>{false, false, false, true, false, false});
  toy::check_equal(toy::Setup<zero::stage::PosG, zero::Mixed<zero::bf16>>{}, run);
  toy::check_equal(toy::Setup<zero::stage::PosGP, zero::Mixed<zero::bf16>>{}, run);
}

}  // namespace
}  // namespace bf16_test
