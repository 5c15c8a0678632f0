/// Views of parameters that somebody has kept: they have the values of the unit's parameters while
/// these are there, and whatever reads them at another time is refused.
#include "libtorch/sharded_model.hpp"
#include "support/child_process.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <sstream>
#include <string>

namespace views_test {

using namespace libtorch_tests;
using torch::Tensor;

constexpr std::int64_t width = 40;

/// A product in memory that LibTorch has not allocated: no operation computes it, and of the node
/// that it has in autograd's graph LibTorch tells nobody.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        Tensor const& x,
                        Tensor const& factor) {
    context->save_for_backward({factor});
    Tensor const product = x * factor;
    auto* const memory = new float[static_cast<std::size_t>(product.numel())];
    std::copy_n(product.data_ptr<float>(), product.numel(), memory);
    return torch::from_blob(
        memory,
        product.sizes(),
        [](void* its) { delete[] static_cast<float*>(its); },
        torch::kFloat);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients) {
    return {gradients[0] * context->get_saved_variables()[0], Tensor()};
  }
};

struct KeeperImpl;
/// Changes nothing, and computes a product in its backward pass, which the unit keeps.
struct Nested : torch::autograd::Function<Nested> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        Tensor const& x,
                        KeeperImpl& unit);
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients);
};

/// Keeps what shares its parameter's memory.
struct KeeperImpl : torch::nn::Module {
  KeeperImpl() {
    weight = register_parameter("weight", torch::ones({2, width}));
    fill(*this, 0.);
  }
  Tensor forward(Tensor const& x) {
    view = weight[1];
    product = Product::apply(x * 1, view);
    detached = weight.detach();
    data = weight.data();
    data_of_view = weight.t().data();
    return Nested::apply(x * view, *this);
  }
  Tensor weight, view, product, detached, data, data_of_view, of_backward;
};
TORCH_MODULE(Keeper);

Tensor Nested::forward(torch::autograd::AutogradContext* context,
                       Tensor const& x,
                       KeeperImpl& unit) {
  context->saved_data["unit"] = reinterpret_cast<std::int64_t>(&unit);
  return x.clone();
}
torch::autograd::variable_list Nested::backward(torch::autograd::AutogradContext* context,
                                                torch::autograd::variable_list const& gradients) {
  auto& unit = *reinterpret_cast<KeeperImpl*>(context->saved_data["unit"].toInt());
  if (torch::GradMode::is_enabled()) unit.of_backward = Product::apply(gradients[0], unit.view);
  return {gradients[0], Tensor()};
}

using Opt = zero::libtorch::Sharded<zero::Self, zero::stage::PosGP>;

Tensor leaf() { return torch::ones({3, width}).set_requires_grad(true); }

/// What LibTorch says, in a process of its own, so that a signal fails one check alone.
std::string words(std::function<void(Opt& opt, Keeper& unit)> const& use) {
  int status = 0;
  std::string const text = last_words(
      [&] {
        at::set_num_threads(1);
        zero::Self comm;
        Keeper unit;
        Opt opt{comm, *unit, {unit}, zero::stage::PosGP{}};
        try {
          use(opt, unit);
        } catch (c10::Error const& error) {
          std::fputs(error.what_without_backtrace(), stderr);
        }
      },
      status);
  CHECK(status == 0);
  return text;
}

TEST_CASE("a kept view of a parameter that is not there is refused wherever it is read") {
  struct Use {
    std::string name;
    std::function<void(Opt& opt, Keeper& unit)> run;
  };
  // Of what a unit has kept.
  auto const after = [](auto const& read) {
    return [read](Opt& opt, Keeper& unit) {
      static_cast<void>(opt.forward(unit, leaf()));
      torch::NoGradGuard const off;
      read(*unit);
    };
  };
  Use const uses[] = {
      {"a result in other memory, which a member has",
       [](Opt& opt, Keeper& unit) {
         static_cast<void>(opt.forward(unit, leaf()));
         unit->product.sum().backward();
       }},
      {"a result of an own Function in another's backward pass, which a member has",
       [](Opt& opt, Keeper& unit) {
         opt.forward(unit, leaf()).sum().backward({}, true, true);
         unit->of_backward.sum().backward();
       }},
      {"a hook on a unit's input",
       [](Opt& opt, Keeper& unit) {
         Tensor const x = leaf() * 2;
         x.register_hook([&](Tensor const& gradient) { return gradient * unit->view; });
         opt.forward(unit, x).sum().backward();
       }},
      {"a hook on a unit's output",
       [](Opt& opt, Keeper& unit) {
         Tensor const y = opt.forward(unit, leaf());
         y.register_hook([&](Tensor const& gradient) { return gradient * unit->view; });
         y.sum().backward();
       }},
      {"a sum", after([](KeeperImpl& unit) { unit.view + 1; })},
      {"another's sum", after([](KeeperImpl& unit) { torch::ones({width}).add_(unit.view); })},
      {"a product of matrices", after([](KeeperImpl& unit) { unit.detached.mm(unit.data.t()); })},
      {"a list", after([](KeeperImpl& unit) {
         torch::cat({torch::ones({width}), unit.view});
       })},
      {"a number", after([](KeeperImpl& unit) { unit.view[0].item<float>(); })},
      {"a view of it", after([](KeeperImpl& unit) { unit.view.narrow(0, 1, 2).sum(); })},
      {"a copy", after([](KeeperImpl& unit) { unit.view.clone(); })},
      {"another type", after([](KeeperImpl& unit) { unit.view.to(torch::kDouble); })},
      {"print", after([](KeeperImpl& unit) { std::ostringstream() << unit.view; })},
      {"detach()", after([](KeeperImpl& unit) { unit.detached.norm(); })},
      {"data()", after([](KeeperImpl& unit) { unit.data.norm(); })},
      {"data() of a view", after([](KeeperImpl& unit) { unit.data_of_view.norm(); })},
      {"data() afterwards", after([](KeeperImpl& unit) { unit.view.data().norm(); })},
      {"in place", after([](KeeperImpl& unit) { unit.view.mul_(2); })},
      {"a copy to it", after([](KeeperImpl& unit) { unit.view.copy_(torch::ones({width})); })},
      {"a copy from it", after([](KeeperImpl& unit) { torch::ones({width}).copy_(unit.view); })},
      {"of full_parameters()",
       [](Opt& opt, Keeper& unit) {
         Tensor view;
         {
           auto const whole = opt.full_parameters();
           view = unit->weight.flatten();
         }
         static_cast<void>(view.sum());
       }},
      {"of a backward pass",
       [](Opt& opt, Keeper& unit) {
         Tensor view;
         Tensor const x = leaf();
         x.register_hook([&](Tensor const&) { view = unit->weight.detach(); });
         opt.forward(unit, x).sum().backward();
         static_cast<void>(view.sum());
       }},
      {"after the optimizer",
       [](Opt& /*opt*/, Keeper& /*unit*/) {
         zero::Self comm;
         Keeper other;
         {
           Opt opt{comm, *other, {other}, zero::stage::PosGP{}};
           static_cast<void>(opt.forward(other, leaf()));
         }
         static_cast<void>(other->view.sum());
       }},
  };
  for (Use const& use : uses) {
    CAPTURE(use.name);
    std::string const said = words(use.run);
    CAPTURE(said);
    CHECK(said.find("libtorch: parameter 'weight' or a view of it is used outside of unit 0, "
                    "without which it has no values") != std::string::npos);
  }
  std::string const said = words(after([](KeeperImpl& unit) {
    std::ostringstream file;
    torch::save(unit.view, file);
  }));
  CHECK_MESSAGE((said.find("to a storage on different device \"fpga\"") != said.npos ||
                 said.find("is used outside of unit 0") != said.npos),
                said);
}

TEST_CASE("a kept view has its parameter's values while the unit is there") {
  at::set_num_threads(1);
  zero::run_ranks(2, [](zero::InProcess& comm) {
    Keeper unit, plain;
    zero::libtorch::Sharded opt{
        comm, *unit, {unit}, zero::stage::PosGP{}, zero::PlainSgd{.lr = 0.5f}};
    Tensor read, kept;
    for (int step = 0; step < 3; ++step) {
      // Gradients are added to leaves before the pass leaves the unit.
      Tensor const in = leaf();
      in.register_hook([&](Tensor const&) { read = unit->detached[1] + unit->data[0]; });
      opt.forward(unit, in).sum().backward();
      CHECK(read.equal(plain->weight[1] + plain->weight[0]));
      if (kept.defined()) {
        auto const whole = opt.full_parameters();
        CHECK(kept.equal(plain->weight[1]));
      }
      kept = unit->view.data();
      opt.step();
      plain->forward(in.detach()).sum().backward();
      torch::NoGradGuard const off;
      plain->weight.sub_(plain->weight.grad(), 0.5f);
      plain->weight.mutable_grad() = Tensor();
    }
  });
}

}  // namespace views_test
