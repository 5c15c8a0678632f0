#include "harness.hpp"

namespace borrowed_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;

template <class Stage, class Precision, class Accumulation = zero::AccumulateNone>
using Lending = toy::Setup<Stage, Precision, zero::AdamW, Accumulation, zero::Borrowed<>>;

TEST_CASE("borrowed memory gives the bits of owned memory and is written nowhere else") {
  for (bool const flat : {false, true}) {
    for (std::size_t const bucket : {std::size_t{1}, std::size_t{12345}, std::size_t{1} << 22}) {
      toy::Run const run{.ranks = 3, .bucket_bytes = bucket, .max_norm = 4.};
      toy::check_equal(Lending<zero::stage::Replicated, zero::Fp32>{.flat = flat}, run);
      toy::check_equal(Lending<zero::stage::Pos, Bf16>{.flat = flat}, run);
      toy::check_equal(Lending<zero::stage::PosG, zero::Fp32>{.flat = flat}, run);
      toy::check_equal(Lending<zero::stage::PosG, Bf16>{.flat = flat}, run);
    }
  }
}

TEST_CASE("a trainer that adds up micro-batches in its own memory") {
  toy::Run const run{.ranks = 2, .micro_steps = 3, .bucket_bytes = 12345};
  auto const setup = Lending<zero::stage::Pos, zero::Fp32, zero::AccumulateFull>{.flat = true};
  toy::check_equal(setup, run);
}

}  // namespace
}  // namespace borrowed_test
