/// Several precisions as one.
#include "support/test.hpp"
#include <zero/precision/by_tensor.hpp>
#include <zero/precision/mixed.hpp>

namespace by_tensor_test {
namespace {

using zero::ByTensor;
using zero::Fp32;
using Bf16 = zero::Mixed<zero::bf16>;
using Fp16 = zero::Mixed<zero::fp16>;
using Three = ByTensor<Fp16, Bf16, Fp32>;

static_assert(zero::Precision<Three>);
static_assert(zero::Precision<ByTensor<Fp32>>);
static_assert(std::same_as<Three::Parameter, zero::fp16>);
static_assert(Three::loss_scaled && !ByTensor<Bf16, Fp32>::loss_scaled);
static_assert(
    std::same_as<zero::detail::Precisions<Three>, zero::detail::PrecisionList<Fp16, Bf16, Fp32>>);
static_assert(std::same_as<zero::detail::Precisions<Fp32>, zero::detail::PrecisionList<Fp32>>);

}  // namespace

TEST_CASE("a list of precisions has all their names, and the first one's loss scale") {
  CHECK(Three::name == "fp16, bf16, fp32");
  CHECK(ByTensor<Fp32>::name == "fp32");
  Three const scaled{{.loss_scale = {.initial = 8.f}}};
  CHECK(scaled.loss_scale.initial == 8.f);
  CHECK(scaled != Three{});
}

}  // namespace by_tensor_test
