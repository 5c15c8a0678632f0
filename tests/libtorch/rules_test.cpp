// Rules whose states are codes, or that measure whole tensors, train modules as they do without
// LibTorch.
#include "libtorch/sharded_model.hpp"

namespace rules_libtorch_test {
namespace {

using zero::libtorch::Optimizer;
using zero::libtorch::Sharded;
using zero::stage::PosG;
using zero::stage::PosGP;

/// A layer whose weight has as many elements as states of 8 bits need; its bias has fewer.
torch::nn::Linear wide() {
  torch::NoGradGuard const off;
  torch::nn::Linear layer(64, 64);
  layer->weight.copy_(torch::arange(4096.).reshape({64, 64}).sin() * 0.125);
  layer->bias.copy_(torch::arange(64.).cos() * 0.5);
  return layer;
}
torch::Tensor input(int step, int rank) {
  return (torch::arange(512.).reshape({8, 64}) * (0.1 + step + 0.5 * rank)).sin();
}
torch::Tensor loss(torch::Tensor const& y) { return (y - 0.25).square().mean(); }

/// A layer after some steps of an optimizer in memory that it lends.
template <class R>
torch::nn::Linear trained(zero::InProcess& comm,
                          R const& rule,
                          int steps,
                          bool full_states = false) {
  torch::nn::Linear layer = wide();
  auto model = zero::libtorch::describe(*layer);
  for (zero::Tensor& tensor : model.tensors) tensor.full_states = full_states;
  Optimizer opt{comm, model, rule, PosG{}};
  for (int step = 0; step < steps; ++step) {
    loss(layer->forward(input(step, comm.rank()))).backward();
    opt.step();
    opt.zero_grad();
  }
  return layer;
}
/// The same under Pos+g+p.
template <class R>
std::vector<torch::Tensor> sharded(zero::InProcess& comm, R const& rule, int steps) {
  torch::nn::Linear layer = wide();
  Sharded opt{comm, *layer, {layer}, rule, PosGP{}};
  for (int step = 0; step < steps; ++step) {
    loss(opt.forward(layer, input(step, comm.rank()))).backward();
    opt.step();
  }
  auto const all = opt.full_parameters();
  return {layer->weight.detach().clone(), layer->bias.detach().clone()};
}

/// ‖after - before‖ / ‖before‖.
double moved(torch::Tensor const& after, torch::Tensor const& before) {
  return ((after - before).norm() / before.norm()).detach().item<double>();
}

}  // namespace

TEST_CASE("a module trains with states of 8 bits, in lent memory and in shards alike") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::AdamW8bit const rule{.lr = 1e-2};
    zero::AdamW const full{.lr = 1e-2};
    // Fresh moments move parameters before they are rounded.
    auto const one = trained(comm, rule, 1);
    auto const one_full = trained(comm, full, 1);
    CHECK(torch::equal(one->weight, one_full->weight));
    auto const ten = trained(comm, rule, 10);
    auto const ten_full = trained(comm, full, 10);
    CHECK(!torch::equal(ten->weight, ten_full->weight));
    CHECK(moved(ten->weight, ten_full->weight) < 0.05);
    CHECK(moved(wide()->weight, ten_full->weight) > 0.2);
    CHECK(torch::equal(trained(comm, rule, 10, true)->weight, ten_full->weight));
    // Of a small tensor, states are in full; its gradients are of other weights.
    CHECK(moved(ten->bias, ten_full->bias) < 0.05);
    auto const shards = sharded(comm, rule, 10);
    CHECK(torch::equal(shards[0], ten->weight));
    CHECK(torch::equal(shards[1], ten->bias));
  });
}

TEST_CASE("a module trains with LAMB: each step is as long as its share of the tensor") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    zero::Lamb const rule{.lr = 0.0625};
    auto const before = wide();
    auto const one = trained(comm, rule, 1);
    CHECK(moved(one->weight, before->weight) == doctest::Approx(0.0625).epsilon(1e-5));
    CHECK(moved(one->bias, before->bias) == doctest::Approx(0.0625).epsilon(1e-5));
    auto const two = trained(comm, rule, 2);
    CHECK(moved(two->weight, one->weight) == doctest::Approx(0.0625).epsilon(1e-5));
    auto const shards = sharded(comm, rule, 2);
    CHECK(torch::equal(shards[0], two->weight));
    CHECK(torch::equal(shards[1], two->bias));
  });
}

}  // namespace rules_libtorch_test
