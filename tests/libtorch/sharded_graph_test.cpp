#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

namespace sharded_graph_test {

using namespace libtorch_tests;
using zero::libtorch::Sharded;

constexpr int ranks = 3;
constexpr int steps = 4;

torch::Tensor input(int step, int rank) {
  return torch::cos(torch::arange(12, torch::kFloat) + step * 7 + rank).view({3, 4});
}

/// Trains `Model` under Pos+g+p and Pos+g, and by LibTorch alone: `loss(input, call)`.
template <class Model>
void check_against_libtorch(int prefetch = 1) {
  at::set_num_threads(1);
  Model theirs;
  auto const expected = averaged_by_libtorch(
      theirs, ranks, steps, 1, [](Model& model, int rank, int step, int /*micro*/) {
        return model->loss(input(step, rank), plainly);
      });
  auto const run = [&](auto stage) {
    return on_ranks(ranks, [&](zero::InProcess& comm) {
      Model model;
      Sharded sharded{
          comm, *model, model->units(), stage, zero::AdamW{.lr = rate}, zero::Prefetch{prefetch}};
      for (int step = 0; step < steps; ++step) {
        model->loss(input(step, comm.rank()), through(sharded)).backward();
        sharded.step();
      }
      auto const all = sharded.full_parameters();
      return bytes_of(*model);
    });
  };
  auto const bytes = run(zero::stage::PosGP{});
  REQUIRE(!bytes.empty());
  CHECK(run(zero::stage::PosG{}) == bytes);
  double const away = distance(floats(bytes), expected);
  CAPTURE(away);
  CHECK(away < 1e-5);
  Model untouched;
  CHECK(distance(flat(*untouched), expected) > 1e-2);
}

/// Calls one unit three times.
struct RepeatedImpl : torch::nn::Module {
  RepeatedImpl() {
    layer = register_module("layer", torch::nn::Linear(4, 4));
    out = register_module("out", torch::nn::Linear(4, 2));
    fill(*this, 0.);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const { return {layer, out}; }
  template <class Call>
  torch::Tensor loss(torch::Tensor x, Call const& call) {
    for (int i = 0; i < 3; ++i) x = torch::tanh(call(layer, x));
    return call(out, x).square().mean();
  }
  torch::nn::Linear layer{nullptr}, out{nullptr};
};
TORCH_MODULE(Repeated);

TEST_CASE("a unit that is called three times is reduced once, with all its gradients") {
  check_against_libtorch<Repeated>();
}

/// A unit that has another one within it, which the trainer lets it call; a bias of its own that is
/// used after.
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    inner = register_module("inner", torch::nn::Linear(4, 4));
    first = register_module("first", torch::nn::Linear(4, 4));
    bias = register_parameter("bias", torch::zeros({4}));
  }
  torch::Tensor forward(torch::Tensor const& x,
                        std::function<torch::Tensor(torch::Tensor const&)> const& call_inner) {
    return torch::sigmoid(call_inner(torch::tanh(first(x))) + x) * bias;
  }
  torch::nn::Linear inner{nullptr}, first{nullptr};
  torch::Tensor bias;
};
TORCH_MODULE(Outer);
struct NestedImpl : torch::nn::Module {
  NestedImpl() {
    outer = register_module("outer", Outer());
    last = register_module("last", torch::nn::Linear(4, 2));
    fill(*this, 0.);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const {
    return {outer, outer->inner, last};
  }
  template <class Call>
  torch::Tensor loss(torch::Tensor const& x, Call const& call) {
    std::function<torch::Tensor(torch::Tensor const&)> const call_inner =
        [&](torch::Tensor const& y) -> torch::Tensor { return call(outer->inner, y); };
    return call(last, call(outer, x, call_inner)).square().mean();
  }
  Outer outer{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(Nested);

TEST_CASE("a unit within a unit is gathered while the other one is in use") {
  check_against_libtorch<Nested>(1);
  check_against_libtorch<Nested>(2);
  Nested net;
  auto const model = zero::libtorch::describe(*net, net->units());
  std::vector<std::string> names;
  for (auto const& each : model.tensors) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{"outer.bias",
                                          "outer.inner.weight",
                                          "outer.inner.bias",
                                          "outer.first.weight",
                                          "outer.first.bias",
                                          "last.weight",
                                          "last.bias"});
}

/// Several outputs, one of which nobody uses and one of which needs no gradient.
struct ManyImpl : torch::nn::Module {
  ManyImpl() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 4));
    unused = register_parameter("unused", torch::ones({3}));
  }
  std::tuple<torch::Tensor, std::vector<torch::Tensor>, torch::Tensor> forward(
      torch::Tensor const& x) {
    return {a(x), {b(x), b(x) + 1}, x.argmax(1)};
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
  torch::Tensor unused;
};
TORCH_MODULE(Many);
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    many = register_module("many", Many());
    out = register_module("out", torch::nn::Linear(4, 4));
    fill(*this, 0.);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const { return {many, out}; }
  template <class Call>
  torch::Tensor loss(torch::Tensor const& x, Call const& call) {
    auto outputs = call(many, x);
    CHECK(!std::get<2>(outputs).requires_grad());
    torch::Tensor y = std::get<0>(outputs);
    y.mul_(2);  // outputs may be changed in place
    y.relu_();
    y = y + std::get<1>(outputs)[0];
    return torch::nn::functional::cross_entropy(call(out, y), std::get<2>(outputs));
  }
  Many many{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Branches);

TEST_CASE("outputs come in tuples and vectors, and may be changed in place") {
  check_against_libtorch<Branches>();
}

/// Runs `part` again in the backward pass, instead of keeping what it computes.
struct Again : torch::autograd::Function<Again> {
  using Part = std::function<torch::Tensor(torch::Tensor const&)>;
  static torch::Tensor forward(torch::autograd::AutogradContext* context,
                               torch::Tensor const& x,
                               Part const* part) {
    context->save_for_backward({x});
    context->saved_data["part"] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(part));
    return (*part)(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients) {
    auto const* const part = reinterpret_cast<Part const*>(
        static_cast<std::intptr_t>(context->saved_data["part"].toInt()));
    auto const x = context->get_saved_variables()[0].detach().set_requires_grad(true);
    torch::Tensor y;
    {
      torch::AutoGradMode const on(true);
      y = (*part)(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), torch::Tensor()};
  }
};

/// Two of three layers are computed again.
struct RecomputedImpl : torch::nn::Module {
  RecomputedImpl() {
    for (char const* const name : {"a", "b", "c"}) {
      layers.push_back(register_module(name, torch::nn::Linear(4, 4)));
    }
    fill(*this, 0.);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const {
    return {layers[0], layers[1], layers[2]};
  }
  template <class Call>
  torch::Tensor loss(torch::Tensor const& x, Call const& call) {
    part = [this, call](torch::Tensor const& y) -> torch::Tensor {
      return torch::tanh(call(layers[1], torch::tanh(call(layers[0], y))));
    };
    auto const in = x.detach().set_requires_grad(true);
    return call(layers[2], Again::apply(in, &part)).square().mean();
  }
  std::vector<torch::nn::Linear> layers;
  Again::Part part;
};
TORCH_MODULE(Recomputed);

TEST_CASE("units are computed again within the backward pass") {
  check_against_libtorch<Recomputed>();
}

/// A parameter of one unit, in whose memory another unit has one of its own.
struct ShareImpl : torch::nn::Module {
  explicit ShareImpl(torch::Tensor const& memory) {
    weight = register_parameter("weight", memory.detach(), true);
  }
  torch::Tensor forward(torch::Tensor const& x) { return (x * weight).sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(Share);

TEST_CASE("two tensors of one memory, in two units, are tied, and their gradients add up") {
  auto const check = [](auto stage) {
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      auto const memory = torch::ones({3});
      Share a(memory), b(memory);
      torch::nn::ModuleList both(a, b);
      Sharded sharded{comm, *both, {a, b}, stage, zero::PlainSgd{.lr = 1.f}};
      for (int step = 0; step < 2; ++step) {
        auto const x = torch::full({3}, 1. + comm.rank());
        (sharded.forward(a, x) + 3 * sharded.forward(b, x)).backward();
        sharded.step();
      }
      sharded.forward(b, torch::ones({3})).backward();
      sharded.step();
      auto const all = sharded.full_parameters();
      CHECK(a->weight[1].template item<float>() == 1.f - 2 * 4 * 1.5f - 1.f);
      CHECK(b->weight.equal(a->weight));
      CHECK(a->weight.data_ptr() == b->weight.data_ptr());
    });
  };
  check(zero::stage::PosGP{});
  check(zero::stage::PosG{});
}

bool says(std::string const& text, std::string const& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

TEST_CASE("a unit that is computed again twice in one backward pass is refused") {
  for (bool const partitioned : {true, false}) {
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      torch::nn::Linear layer(4, 4);
      auto const run = [&](auto stage) {
        Sharded sharded{comm, *layer, {layer}, stage};
        Again::Part const part = [&](torch::Tensor const& x) {
          return torch::tanh(sharded.forward(layer, x));
        };
        auto x = input(0, comm.rank()).set_requires_grad(true);
        auto const loss = Again::apply(Again::apply(x, &part), &part).square().mean();
        CHECK(says(refusal([&] { loss.backward(); }), "after its gradients were reduced"));
        sharded.zero_grad();
        // It goes on from there.
        sharded.forward(layer, x).square().mean().backward();
        CHECK(sharded.step().step == 1);
      };
      if (partitioned) {
        run(zero::stage::PosGP{});
      } else {
        run(zero::stage::PosG{});
      }
    });
  }
}

TEST_CASE("two losses of one step, each of which comes through a unit, add up") {
  at::set_num_threads(1);
  auto const run = [](bool together) {
    return on_ranks(2, [&](zero::InProcess& comm) {
      torch::nn::Linear layer(4, 4);
      fill(*layer, 0.);
      Sharded sharded{comm, *layer, {layer}, zero::stage::PosGP{}, zero::PlainSgd{.lr = 0.5f}};
      auto const a = sharded.forward(layer, input(0, comm.rank())).square().mean();
      auto const b = sharded.forward(layer, input(1, comm.rank())).square().mean();
      if (together) {
        torch::autograd::backward({a, b});
      } else {
        b.backward();
        CHECK(layer->weight.grad().defined());  // it is not complete yet
        a.backward();
      }
      CHECK(!layer->weight.grad().defined());
      sharded.step();
      auto const all = sharded.full_parameters();
      return bytes_of(*layer);
    });
  };
  auto const bytes = run(true);
  REQUIRE(!bytes.empty());
  CHECK(run(false) == bytes);
}

TEST_CASE("a graph that ends without a backward pass is waited for no longer") {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    torch::nn::Linear layer(4, 4), never(4, 4);
    torch::nn::ModuleList both(layer, never);
    Sharded sharded{comm, *both, {layer, never}, zero::stage::PosGP{}};
    {
      auto const dropped = sharded.forward(layer, input(0, comm.rank()));
      auto const fails = sharded.forward(never, dropped);
    }
    auto const kept = sharded.forward(never, input(0, comm.rank()));
    sharded.forward(layer, input(1, comm.rank())).square().mean().backward();
    CHECK(!layer->weight.grad().defined());
    sharded.step();  // before the graph of `kept` ends
    CHECK(sharded.core().steps(0) == 1);
    CHECK(sharded.core().steps(2) == 0);
    CHECK_THROWS_AS(static_cast<void>(sharded.skip(never, torch::ones({2}, torch::kLong))),
                    zero::Error);
  });
}

TEST_CASE("the backward pass of a graph that is older than a step or a Sharded is refused") {
  zero::Self comm;
  torch::nn::Linear layer(4, 4), other(4, 4);
  torch::nn::ModuleList both(layer, other);
  torch::Tensor loss;
  {
    Sharded sharded{comm, *both, {layer, other}, zero::stage::PosGP{}};
    auto const old = sharded.forward(other, torch::tanh(sharded.forward(layer, input(0, 0))));
    sharded.forward(other, input(0, 0)).sum().backward();
    sharded.step();
    CHECK_THROWS_AS(old.sum().backward(), c10::Error);
    sharded.zero_grad();
    loss = sharded.forward(other, input(0, 0)).sum();
  }
  CHECK(says(refusal([&] { loss.backward(); }), "after the end of its Sharded"));
}

TEST_CASE("what cannot be sharded is refused by name") {
  using zero::libtorch::describe;
  torch::nn::Linear a(2, 2), b(2, 2);
  torch::nn::Sequential within(a, b);
  torch::nn::Tanh nothing;
  torch::nn::ModuleList whole(within, nothing);
  auto const of = [&](std::vector<zero::libtorch::Unit> const& units) {
    return refusal([&] { static_cast<void>(describe(*whole, units)); });
  };
  CHECK(says(of({within, within}), "unit '1' is a module that is a unit before"));
  CHECK(says(of({within, nothing}), "unit '1' has no parameters of its own"));
  CHECK(says(of({within, a, b}), "unit '0' has no parameters of its own"));
  CHECK(says(of({within, torch::nn::Linear(2, 2)}), "unit '1' is not within the module"));
  CHECK(says(of({a}), "parameter '0.1.weight' is in no unit, and would not be trained"));
  CHECK(of({within, b}) == "nothing was refused");

  zero::Self comm;
  {
    Sharded sharded{comm, *a, {a}, zero::stage::PosGP{}};
    CHECK(says(refusal([&] {
                 static_cast<void>(sharded.forward(b, torch::ones({1, 2})));
               }),
               "is no unit of this model"));
  }
  auto const row = torch::ones({8});
  b->weight.set_data(row.narrow(0, 0, 4).view({2, 2}));
  CHECK(says(refusal([&] {
               Sharded sharded{comm, *b, {b}, zero::stage::PosGP{}};
             }),
             "parameter 'weight' is a part of a larger storage"));
}

}  // namespace sharded_graph_test
