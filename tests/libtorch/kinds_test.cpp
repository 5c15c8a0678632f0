// Modules of parameters of several types: trained in 16 and 32 bits, and bytes that are frozen.
#include "libtorch/sharded_model.hpp"

namespace kinds_libtorch_test {
namespace {

using zero::libtorch::Frozen;
using zero::libtorch::Optimizer;
using zero::libtorch::Sharded;
using Both = zero::ByTensor<zero::Mixed<zero::bf16>, zero::Fp32>;

/// y = (w x + n) * base, where w has 16 bits, n 32, and base is frozen bytes.
struct ScaledImpl : torch::nn::Module {
  explicit ScaledImpl(int rank) {
    w = register_parameter("w", torch::full({3}, 1. + rank, torch::kBFloat16));
    n = register_parameter("n", torch::full({3}, 2. + rank));
    base = register_parameter("base", torch::full({3}, 3 + rank, torch::kByte), false);
  }
  torch::Tensor forward(torch::Tensor const& x) {
    return (w.to(torch::kFloat) * x + n) * base.to(torch::kFloat);
  }
  torch::Tensor w, n, base;
};
TORCH_MODULE(Scaled);

/// Has it the first rank's values, after a step with the slopes 3 and 3?
void check(torch::Tensor const& w, torch::Tensor const& n, torch::Tensor const& base) {
  CHECK((w.scalar_type() == torch::kBFloat16));
  CHECK((n.scalar_type() == torch::kFloat));
  CHECK((base.scalar_type() == torch::kByte));
  CHECK(w.to(torch::kFloat).sum().item<float>() == 3.f * (1.f - 3.f));
  CHECK(n.sum().item<float>() == 3.f * (2.f - 3.f));
  CHECK(base.to(torch::kFloat).sum().item<float>() == 9.f);
}

}  // namespace

TEST_CASE("a module of several types is described and trained as it is") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    Scaled module(comm.rank());
    Optimizer opt{comm, *module, Both{}, zero::PlainSgd{.lr = 1.f}};
    module->forward(torch::ones({3})).sum().backward();
    opt.step();
    check(module->w, module->n, module->base);
  });
}

TEST_CASE("under Pos+g+p its bytes are partitioned, and come with their unit") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    Scaled module(comm.rank());
    Sharded sharded{
        comm, *module, {module}, Both{}, zero::PlainSgd{.lr = 1.f}, zero::stage::PosGP{}};
    sharded.forward(module, torch::ones({3})).sum().backward();
    sharded.step();
    auto const all = sharded.full_parameters();
    check(module->w, module->n, module->base);
  });
}

TEST_CASE("integers stay frozen where all else may be trained later") {
  Scaled module(0);
  module->n.set_requires_grad(false);
  auto const tensors = zero::libtorch::describe(*module, Frozen::may_thaw).tensors;
  CHECK(!tensors[1].frozen);
  CHECK(tensors[2].frozen);
}

TEST_CASE("a gradient of another type than its parameter's is refused by name") {
  zero::Self comm;
  Scaled lent(0), sharded(0);
  std::string const expected =
      "libtorch: gradient of parameter 'n' has the type Double, but is exchanged as fp32: convert "
      "it with to(), or name a precision with such gradients";
  lent->n.mutable_grad() = sharded->n.mutable_grad() = torch::zeros({3}, torch::kDouble);
  CHECK(refusal([&] {
          Optimizer opt{comm, *lent, Both{}};
          opt.step();
        }) == "gradients: tensor 'n' is of fp32, but lent as fp64");
  CHECK(refusal([&] {
          Sharded opt{comm, *lent, {lent}, Both{}};
          opt.step();
        }) == expected);
  CHECK(refusal([&] {
          Sharded opt{comm, *sharded, {sharded}, Both{}, zero::stage::PosGP{}};
          opt.step();
        }) == expected);
}

TEST_CASE("a trained parameter of a type that no precision has is refused by name") {
  zero::Self comm;
  Scaled module(0);
  CHECK(refusal([&] {
          Optimizer opt{comm, *module, zero::Mixed<zero::bf16>{}};
        }) == "tensor 'n' is trained and of fp32, which no precision here has: bf16");
}

}  // namespace kinds_libtorch_test
