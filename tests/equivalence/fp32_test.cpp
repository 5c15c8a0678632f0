#include "harness.hpp"

namespace fp32_test {
namespace {

template <class Stage>
void all_ranks_and_buckets() {
  for (int const ranks : {1, 2, 3, 4, 5, 8}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, std::size_t{1} << 22}) {
      toy::check_equal(toy::Setup<Stage, zero::Fp32>{},
                       {.ranks = ranks, .bucket_bytes = bucket, .max_norm = 5.});
    }
  }
}

TEST_CASE("fp32: stage x ranks x bucket equals the reference bit for bit [full]") {
  all_ranks_and_buckets<zero::stage::Replicated>();
  all_ranks_and_buckets<zero::stage::Pos>();
  all_ranks_and_buckets<zero::stage::PosG>();
  all_ranks_and_buckets<zero::stage::PosGP>();
}

TEST_CASE("fp32: every stage equals the reference on three ranks") {
  toy::Run const run{.ranks = 3, .steps = 5, .bucket_bytes = 12345};
  toy::check_equal(toy::Setup<zero::stage::Replicated, zero::Fp32>{}, run);
  toy::check_equal(toy::Setup<zero::stage::Pos, zero::Fp32>{}, run);
  toy::check_equal(toy::Setup<zero::stage::PosG, zero::Fp32>{}, run);
  toy::check_equal(toy::Setup<zero::stage::PosGP, zero::Fp32>{}, run);
}

}  // namespace
}  // namespace fp32_test
