/// What belongs to a model beside its submodules, and what of it trains when.
#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

namespace whole_test {

using namespace libtorch_tests;
using zero::libtorch::Optimizer;
using zero::libtorch::Sharded;

constexpr int ranks = 3;

TEST_CASE(
    "a parameter of the model itself trains as in LibTorch, and so does a layer of two names") {
  at::set_num_threads(1);
  Rooted theirs;
  auto const expected = averaged_by_libtorch(
      theirs, ranks, steps, 1, [](Rooted& net, int rank, int step, int /*micro*/) {
        return net->loss(step * ranks + rank, plainly);
      });
  auto const sharded = [](auto stage) {
    return on_ranks(ranks, [&](zero::InProcess& comm) {
      Rooted net;
      Sharded opt{comm, *net, net->units(), stage, zero::AdamW{.lr = rate}};
      for (int step = 0; step < steps; ++step) {
        net->loss(step * ranks + comm.rank(), through(opt)).backward();
        opt.step();
      }
      auto const all = opt.full_parameters();
      return bytes_of(*net);
    });
  };
  auto const bytes = on_ranks(ranks, [&](zero::InProcess& comm) {
    Rooted net;
    Optimizer opt{comm, *net, zero::AdamW{.lr = rate}};
    for (int step = 0; step < steps; ++step) {
      net->loss(step * ranks + comm.rank(), plainly).backward();
      opt.step();
      opt.zero_grad();
    }
    return bytes_of(*net);
  });
  REQUIRE(!bytes.empty());
  CHECK(sharded(zero::stage::PosGP{}) == bytes);
  CHECK(sharded(zero::stage::PosG{}) == bytes);
  CHECK(distance(floats(bytes), expected) < 1e-5);
  Rooted untouched;
  CHECK(distance(flat(*untouched), expected) > 1e-2);
}

/// Five steps of which the third and the fourth have gradients for `layer`; `step(batch)`.
template <class Step>
void thaw(Rooted& net, int rank, Step const& step) {
  auto const requires_grad = [&](bool yes) {
    for (auto& p : net->layer->parameters()) p.set_requires_grad(yes);
  };
  for (int i = 0; i < 5; ++i) {
    requires_grad(i == 2 || i == 3);
    step(i * ranks + rank);
  }
}

torch::Tensor thawed_by_libtorch() {
  Rooted net;
  torch::optim::AdamW opt(trainable(*net), torch::optim::AdamWOptions(rate).weight_decay(1e-2));
  thaw(net, 0, [&](int batch) {
    for (auto& p : net->parameters()) p.mutable_grad() = torch::Tensor();
    for (int rank = 0; rank < ranks; ++rank) (net->loss(batch + rank, plainly) / ranks).backward();
    opt.step();
  });
  return flat(*net);
}

template <class Stage>
std::vector<std::uint8_t> thawed_by_sharded() {
  return on_ranks(ranks, [](zero::InProcess& comm) {
    Rooted net;
    for (auto& p : net->layer->parameters()) p.set_requires_grad(false);
    Sharded opt{comm,
                zero::libtorch::describe(*net, net->units(), zero::libtorch::Frozen::may_thaw),
                Stage{},
                zero::AdamW{.lr = rate}};
    thaw(net, comm.rank(), [&](int batch) {
      net->loss(batch, through(opt)).backward();
      opt.step();
    });
    CHECK(opt.core().steps(0) == 5);  // scale
    CHECK(opt.core().steps(1) == 2);  // layer.weight
    auto const all = opt.full_parameters();
    return bytes_of(*net);
  });
}

TEST_CASE("what is frozen at first and may thaw trains and rests as with LibTorch's own AdamW") {
  at::set_num_threads(1);
  auto const bytes = on_ranks(ranks, [](zero::InProcess& comm) {
    Rooted net;
    for (auto& p : net->layer->parameters()) p.set_requires_grad(false);
    Optimizer opt{comm,
                  zero::libtorch::describe(*net, zero::libtorch::Frozen::may_thaw),
                  zero::AdamW{.lr = rate}};
    thaw(net, comm.rank(), [&](int batch) {
      net->loss(batch, plainly).backward();
      opt.step();
      opt.zero_grad();
    });
    return bytes_of(*net);
  });
  REQUIRE(!bytes.empty());
  CHECK(distance(floats(bytes), thawed_by_libtorch()) < 1e-5);
  CHECK(thawed_by_sharded<zero::stage::PosG>() == bytes);
  CHECK(thawed_by_sharded<zero::stage::PosGP>() == bytes);
}

TEST_CASE("a gradient of what was described as frozen is an error") {
  std::string const expected = "parameter 'layer.weight' has a gradient, but required none when";
  auto const contains = [&](std::string const& text) {
    INFO(text);
    CHECK(text.find(expected) != std::string::npos);
  };
  zero::Self comm;
  auto const frozen = [] {
    Rooted net;
    net->layer->weight.set_requires_grad(false);
    return net;
  };
  auto net = frozen();
  Optimizer opt{comm, *net};
  net->layer->weight.set_requires_grad(true);
  net->loss(0, plainly).backward();
  contains(refusal([&] { opt.step(); }));
  opt.zero_grad();
  opt.step();
  auto const sharded = [&](auto stage) {
    auto other = frozen();
    Sharded own{comm, *other, other->units(), stage};
    other->layer->weight.set_requires_grad(true);
    contains(refusal([&] { other->loss(0, through(own)).backward(); }));
    contains(refusal([&] { own.step(); }));
  };
  sharded(zero::stage::PosG{});
  sharded(zero::stage::PosGP{});
}

TEST_CASE(
    "a gradient that comes after its unit was reduced is an error, not a part of the next step") {
  zero::Self comm;
  std::string const expected = "parameter 'weight' got a gradient after those of its unit were";
  auto const check = [&](auto const& use) {
    torch::nn::Linear layer(3, 3);
    Sharded opt{comm, *layer, {layer}, zero::stage::PosG{}, zero::AccumulateShard{}};
    auto const loss = [&] { return opt.forward(layer, torch::ones({1, 3})).sum(); };
    std::string const text = refusal([&] { use(opt, layer, loss); });
    INFO(text);
    CHECK(text.find(expected) != std::string::npos);
    opt.zero_grad();
    loss().backward();
    opt.step();
  };
  check([](auto& opt, auto& layer, auto const& loss) {
    loss().backward();
    layer->weight.square().sum().backward();
    opt.step();
  });
  check([](auto& opt, auto& layer, auto const& loss) {
    auto const penalty = layer->weight.square().sum();
    (loss() + penalty).backward();
    opt.step();
  });
  check([](auto& opt, auto& layer, auto const& loss) {
    opt.micro_step({.last = false});
    loss().backward();
    layer->weight.square().sum().backward();
    opt.micro_step({.last = true});
  });
  torch::nn::Linear layer(3, 3);
  auto const before = layer->weight.detach().clone();
  Sharded opt{comm, *layer, {layer}, zero::stage::PosG{}, zero::PlainSgd{.lr = 0.25f}};
  auto const y = opt.forward(layer, torch::ones({1, 3})).sum();
  (y + layer->weight.square().sum()).backward();
  opt.step();
  CHECK(layer->weight.allclose(before / 2 - 0.25));
}

}  // namespace whole_test
