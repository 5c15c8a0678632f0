#include "harness.hpp"

namespace rules_test {
namespace {

using Bf16 = zero::Mixed<zero::bf16>;

/// Each rule meets each stage, precisions in turn; clipping and bucket sizes alternate.
TEST_CASE("every rule equals the reference under every stage") {
  toy::Run clipped{.ranks = 3, .bucket_bytes = 9001, .max_norm = 4.};
  toy::Run free{.ranks = 2, .bucket_bytes = std::size_t{1} << 22};
  SUBCASE("SGD") {
    zero::Sgd const rule{.lr = 0.01f, .weight_decay = 0.01f, .nesterov = true};
    toy::check_equal(toy::Setup<zero::stage::Replicated, zero::Fp32, zero::Sgd>{rule}, clipped);
    toy::check_equal(toy::Setup<zero::stage::Pos, Bf16, zero::Sgd>{rule}, free);
    toy::check_equal(toy::Setup<zero::stage::PosG, zero::Fp32, zero::Sgd>{rule}, clipped);
    toy::check_equal(toy::Setup<zero::stage::PosGP, Bf16, zero::Sgd>{rule}, free);
  }
  SUBCASE("plain SGD") {
    zero::PlainSgd const rule{.lr = 0.02f};
    toy::check_equal(toy::Setup<zero::stage::Pos, zero::Fp32, zero::PlainSgd>{rule}, clipped);
    toy::check_equal(toy::Setup<zero::stage::PosGP, zero::Fp32, zero::PlainSgd>{rule}, free);
  }
  SUBCASE("Adam") {
    zero::Adam const rule{.lr = 0.01f, .weight_decay = 0.1f};
    toy::check_equal(toy::Setup<zero::stage::Replicated, Bf16, zero::Adam>{rule}, free);
    toy::check_equal(toy::Setup<zero::stage::Pos, zero::Fp32, zero::Adam>{rule}, clipped);
    toy::check_equal(toy::Setup<zero::stage::PosG, Bf16, zero::Adam>{rule}, clipped);
    toy::check_equal(toy::Setup<zero::stage::PosGP, zero::Fp32, zero::Adam>{rule}, free);
  }
  SUBCASE("Adagrad") {
    zero::Adagrad const rule{.lr = 0.05f};
    toy::check_equal(toy::Setup<zero::stage::PosG, zero::Fp32, zero::Adagrad>{rule}, free);
    toy::check_equal(toy::Setup<zero::stage::PosGP, Bf16, zero::Adagrad>{rule}, clipped);
  }
  SUBCASE("RMSProp") {
    zero::RmsProp<true, true> const rule{.lr = 0.01f, .momentum = 0.5f};
    toy::check_equal(toy::Setup<zero::stage::PosGP, Bf16, zero::RmsProp<true, true>>{rule},
                     clipped);
  }
  SUBCASE("Lion") {
    zero::Lion const rule{.lr = 0.001f, .weight_decay = 0.1f};
    toy::check_equal(toy::Setup<zero::stage::Pos, Bf16, zero::Lion>{rule}, clipped);
    toy::check_equal(toy::Setup<zero::stage::PosGP, zero::Fp32, zero::Lion>{rule}, free);
  }
}

}  // namespace
}  // namespace rules_test
