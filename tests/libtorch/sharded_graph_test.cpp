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
using zero::stage::PosG, zero::stage::PosGP;

/// Trains `Model` with both classes, and by LibTorch alone.
template <class Model>
void check_against_libtorch() {
  at::set_num_threads(1);
  Run const run;
  auto const bytes = run.sharded<Model>(PosGP{}, zero::Prefetch{1});
  CHECK(run.sharded<Model>(PosGP{}, zero::Prefetch{2}) == bytes);
  CHECK(run.sharded<Model>(PosG{}) == bytes);
  CHECK(run.optimizer<Model>(PosG{}) == bytes);
  check_trained<Model>(bytes, run.libtorch<Model>());
}

TEST_CASE("units within the one of the model itself, one of two names and called three times") {
  check_against_libtorch<Rooted>();
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
  torch::Tensor loss(int batch, Call const& call) {
    auto outputs = call(many, input(batch));
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
  torch::Tensor loss(int batch, Call const& call) {
    part = [this, call](torch::Tensor const& y) -> torch::Tensor {
      return torch::tanh(call(layers[1], torch::tanh(call(layers[0], y))));
    };
    auto const in = input(batch).set_requires_grad(true);
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
  check(PosGP{});
  check(PosG{});
}

TEST_CASE("a unit that is computed again twice in one backward pass is refused") {
  auto const check = [](auto stage) {
    zero::run_ranks(2, [&](zero::InProcess& comm) {
      torch::nn::Linear layer(4, 4);
      Sharded sharded{comm, *layer, {layer}, stage};
      Again::Part const part = [&](torch::Tensor const& x) {
        return torch::tanh(sharded.forward(layer, x));
      };
      auto x = input(comm.rank()).set_requires_grad(true);
      auto const loss = Again::apply(Again::apply(x, &part), &part).square().mean();
      check_refused([&] { loss.backward(); }, "after its gradients were reduced");
      sharded.zero_grad();
      // It goes on from there.
      sharded.forward(layer, x).square().mean().backward();
      CHECK(sharded.step().step == 1);
    });
  };
  check(PosGP{});
  check(PosG{});
}

TEST_CASE("two losses of one step, each of which comes through a unit, add up") {
  at::set_num_threads(1);
  auto const run = [](bool together) {
    return on_ranks(2, [&](zero::InProcess& comm) {
      torch::nn::Linear layer(4, 4);
      fill(*layer, 0.);
      auto const train = [&](auto& sharded, auto const& call) {
        auto const a = call(layer, input(comm.rank())).square().mean();
        auto const b = call(layer, input(7 + comm.rank())).square().mean();
        if (together) {
          torch::autograd::backward({a, b});
        } else {
          b.backward();
          CHECK(layer->weight.grad().defined());  // it is not complete yet
          a.backward();
        }
        CHECK(!layer->weight.grad().defined());
        sharded.step();
      };
      zero::PlainSgd const rule{.lr = 0.5f};
      return with_sharded(comm, *layer, describe(*layer, {layer}), train, PosGP{}, rule);
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
    Sharded sharded{comm, *both, {layer, never}, PosGP{}};
    {
      auto const dropped = sharded.forward(layer, input(comm.rank()));
      auto const fails = sharded.forward(never, dropped);
    }
    auto const kept = sharded.forward(never, input(comm.rank()));
    sharded.forward(layer, input(7 + comm.rank())).square().mean().backward();
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
    Sharded sharded{comm, *both, {layer, other}, PosGP{}};
    auto const old = sharded.forward(other, torch::tanh(sharded.forward(layer, input(0))));
    sharded.forward(other, input(0)).sum().backward();
    sharded.step();
    CHECK_THROWS_AS(old.sum().backward(), c10::Error);
    sharded.zero_grad();
    loss = sharded.forward(other, input(0)).sum();
  }
  check_refused([&] { loss.backward(); }, "after the end of its Sharded");
}

TEST_CASE("what cannot be sharded is refused by name") {
  torch::nn::Linear a(2, 2), b(2, 2);
  torch::nn::Sequential within(a, b);
  torch::nn::Tanh nothing;
  torch::nn::ModuleList whole(within, nothing);
  struct Row {
    std::vector<zero::libtorch::Unit> units;
    char const* why;
  };
  for (Row const& row :
       {Row{{within, within}, "unit '1' is a module that is a unit before"},
        Row{{within, nothing}, "unit '1' has no parameters of its own"},
        Row{{within, a, b}, "unit '0' has no parameters of its own"},
        Row{{within, torch::nn::Linear(2, 2)}, "unit '1' is not within the module"},
        Row{{a}, "parameter '0.1.weight' is in no unit, and would not be trained"}}) {
    check_refused([&] { static_cast<void>(describe(*whole, row.units)); }, row.why);
  }
  std::vector<std::string> names;
  std::vector<int> units;
  for (auto const& each : describe(*whole, {within, b}).tensors) {
    names.push_back(each.name);
    units.push_back(each.unit);
  }
  CHECK(names == std::vector<std::string>{"0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"});
  CHECK(units == std::vector{0, 0, 1, 1});

  zero::Self comm;
  {
    Sharded sharded{comm, *a, {a}, PosGP{}};
    check_refused(
        [&] {
          static_cast<void>(sharded.forward(b, torch::ones({1, 2})));
        },
        "is no unit of this model");
  }
  auto const row = torch::ones({8});
  b->weight.set_data(row.narrow(0, 0, 4).view({2, 2}));
  check_refused(
      [&] {
        Sharded sharded{comm, *b, {b}, PosGP{}};
      },
      "parameter 'weight' is a part of a larger storage");
}

}  // namespace sharded_graph_test
