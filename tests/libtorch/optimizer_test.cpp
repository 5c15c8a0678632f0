#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace optimizer_test {

using namespace libtorch_tests;
using zero::libtorch::Optimizer;

TEST_CASE("gradients that moved are found again, and what was read before is not read again") {
  zero::Self comm;
  Net net, same;
  Optimizer opt{comm, *net, zero::AdamW{.lr = rate}};
  Optimizer other{comm, *same, zero::AdamW{.lr = rate}};
  std::vector<torch::Tensor> kept;  // so that no new gradient lies where an old one did
  for (int step = 0; step < 3; ++step) {
    net->loss(step, plainly).backward();
    for (auto const& p : net->parameters()) kept.push_back(p.grad());
    opt.step();
    opt.zero_grad();
    for (auto& each : kept) {
      if (each.defined()) each.fill_(1e6);
    }
    same->loss(step, plainly).backward();
    other.step();
    other.zero_grad(false);
  }
  CHECK(bytes_of(*net) == bytes_of(*same));
}

TEST_CASE("an undefined gradient counts as zeros, beside ranks that have one") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    torch::nn::Linear layer(2, 1);
    {
      torch::NoGradGuard const off;
      layer->weight.fill_(1.);
      layer->bias.fill_(1.);
    }
    Optimizer opt{comm, *layer, zero::PlainSgd{.lr = 1.f}};
    if (comm.rank() == 0) layer->bias.mutable_grad() = torch::ones({1});
    opt.step();
    CHECK(layer->bias.item<float>() == 0.5f);
    CHECK(layer->weight.sum().item<float>() == 2.f);
    CHECK(opt.core().steps(0) == 0);
    CHECK(opt.core().steps(1) == 1);
  });
}

TEST_CASE("remainders of masters add up what a parameter in bf16 does not show") {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  layer->to(torch::kBFloat16);
  {
    torch::NoGradGuard const off;
    layer->weight.fill_(1.);
  }
  zero::Self comm;
  zero::Mixed<zero::bf16, zero::Rest16> const mixed;
  Optimizer opt{comm, *layer, mixed, zero::PlainSgd{.lr = 0x1p-10}};
  // A quarter of the distance to the next number; half of it is rounded away from zero.
  for (float const expected : {1.f, 1.f, 1.f - 0x1p-8f}) {
    layer->weight.sum().backward();
    opt.step();
    opt.zero_grad();
    CHECK(layer->weight.item<float>() == expected);
  }
}

TEST_CASE("two tensors of one memory are tied, and their gradients add up") {
  struct Twice : torch::nn::Module {
    Twice() {
      a = register_parameter("a", torch::ones({3}));
      b = register_parameter("b", a.detach().set_requires_grad(true));
    }
    torch::Tensor a, b;
  } net;
  auto const model = describe(net);
  CHECK(model.tensors[1].tied_to == "a");
  zero::Self comm;
  Optimizer opt{comm, net, zero::PlainSgd{.lr = 1.f}};
  (net.a.sum() + 2 * net.b.sum()).backward();
  (net.a.sum() + 2 * net.b.sum()).backward();
  opt.step();
  CHECK(net.a[1].item<float>() == 1.f - 6.f);
  (net.a.sum() + 2 * net.b.sum()).backward();  // to what is one gradient by now
  opt.step();
  CHECK(net.b[1].item<float>() == 1.f - 6.f - 9.f);
  opt.zero_grad();
  net.b.sum().backward();
  opt.step();
  CHECK(net.a[1].item<float>() == 1.f - 6.f - 9.f - 1.f);
}

TEST_CASE("a backward pass through a graph of before a step is refused by autograd") {
  zero::Self comm;
  Net net;
  Optimizer opt{comm, *net};
  auto const before = net->loss(0, plainly);
  net->loss(1, plainly).backward();
  opt.step();
  CHECK_THROWS_WITH_AS(
      before.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}

struct Bag : torch::nn::Module {
  explicit Bag(std::vector<torch::Tensor> const& tensors) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      bool const trains = tensors[t].is_floating_point();
      all.push_back(register_parameter("p" + std::to_string(t), tensors[t], trains));
    }
  }
  std::vector<torch::Tensor> all;
};

TEST_CASE("describe() says names, shapes, ties and what is frozen") {
  Net net;
  auto const model = describe(*net);
  std::vector<std::string> names;
  for (auto const& each : net->named_parameters()) names.push_back(each.key());
  REQUIRE(model.tensors.size() == names.size());
  for (std::size_t t = 0; t < names.size(); ++t) {
    zero::Tensor const& tensor = model.tensors[t];
    CHECK(tensor.name == names[t]);
    CHECK(tensor.frozen == (names[t].rfind("frozen.", 0) == 0));
    CHECK(tensor.tied_to == (names[t] == "head.weight" ? "embedding.weight" : ""));
    CHECK(static_cast<std::int64_t>(zero::element_count(tensor)) == model.parameters[t].numel());
    CHECK(model.parameters[t].is_same(net->named_parameters()[names[t]]));
    if (names[t] == "hidden.weight") CHECK(tensor.shape == std::vector<std::size_t>{13, 6});
  }
  CHECK(names.back() == "head.weight");
  CHECK(describe(*Rooted()).tensors.front().name == "scale");  // a module's own come first
}

TEST_CASE("what cannot be lent is refused by name") {
  auto const memory = torch::zeros({4, 4});
  auto const halves = [&](std::int64_t second) {
    return std::vector{memory.narrow(0, 0, 2), memory.narrow(0, second, 2)};
  };
  struct Row {
    std::vector<torch::Tensor> tensors;
    char const* why;
  };
  for (Row const& row :
       {Row{{torch::zeros({2}), memory.narrow(1, 0, 2)}, "'p1' is a view whose elements"},
        Row{{memory.t()}, "'p0' is a view whose elements"},
        Row{halves(1), "'p1' shares a part of its memory with 'p0'"},
        Row{{memory, memory.view({16})}, "'p1' shares a part of its memory with 'p0'"},
        Row{{torch::zeros({2}), torch::zeros({2}, torch::kMeta)}, "'p1' lies on meta"},
        Row{{torch::zeros({2}), torch::zeros({2}).to_sparse()}, "'p1' is sparse"}}) {
    Bag bag(row.tensors);
    check_refused([&] { static_cast<void>(describe(bag)); }, row.why);
  }
  Bag apart(halves(2));
  CHECK_NOTHROW(static_cast<void>(describe(apart)));

  torch::nn::Sequential net(torch::nn::Linear(2, 2),
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2).sparse(true)));
  check_refused([&] { static_cast<void>(describe(*net)); }, "module '1' makes sparse gradients");

  zero::Self comm;
  Bag doubles({torch::zeros({2}, torch::kDouble)});
  check_refused(
      [&] {
        Optimizer opt{comm, doubles};
      },
      "tensor 'p0' is trained and of fp64, which no precision here has: fp32");
  Bag shorts({torch::zeros({2}), torch::zeros({2}, torch::kShort)});
  check_refused(
      [&] {
        Optimizer opt{comm, shorts};
      },
      "'p1' has the type Short, and the library none of its width");
  Bag bag({torch::zeros({2, 2})});
  Optimizer opt{comm, bag};
  bag.all[0].mutable_grad() = torch::zeros({2, 4}).narrow(1, 0, 2);
  check_refused([&] { opt.step(); }, "gradient of parameter 'p0' is a view");
}

}  // namespace optimizer_test
