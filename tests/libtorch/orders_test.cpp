/// Orders of forward and backward passes, of which some go through a unit without coming through
/// its outputs: each is right or refused, the same under every stage.
#include "libtorch/sharded_model.hpp"

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace orders_test {

using namespace libtorch_tests;
using torch::Tensor;

constexpr std::int64_t width = 40;  // no unit is gathered with another

/// Saves its output, and a view of its weight that a product of matrices reads.
struct LayerImpl : torch::nn::Module {
  LayerImpl() { linear = register_module("linear", torch::nn::Linear(width, width)); }
  Tensor forward(Tensor const& x) { return torch::tanh(linear(x)); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Layer);
/// Saves views of its parameter that are read element by element, and keeps a tensor that it does
/// not return. Where it is told to, its forward pass has a derivative in it, or its backward pass
/// fails in the middle.
struct ScaleImpl : torch::nn::Module {
  ScaleImpl() { scale = register_parameter("scale", torch::ones({width * width})); }
  Tensor forward(Tensor const& x) {
    Tensor y = torch::sigmoid(x * scale.view({width, width})[1]) * scale.narrow(0, 3, width);
    kept = (x * scale.narrow(0, 5, width)).square().mean();
    if (fails) y.register_hook([](Tensor const&) { throw std::runtime_error("a hook failed"); });
    if (!derives) return y;
    return y + torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
  }
  Tensor scale, kept;
  bool derives = false;
  bool fails = false;
};
TORCH_MODULE(Scale);
/// Returns a part of its parameter.
struct PlacesImpl : torch::nn::Module {
  PlacesImpl() { places = register_parameter("places", torch::ones({width, width})); }
  Tensor forward(Tensor const& x) { return places.narrow(0, 1, x.size(0)); }
  Tensor places;
};
TORCH_MODULE(Places);
/// How an own Function has what it reads in its backward pass.
enum class Saved { parameter, view, detached, in_context, data };
/// The product with a part of a parameter. Of its backward pass autograd knows nothing.
struct Product : torch::autograd::Function<Product> {
  static constexpr std::int64_t first = 7;
  static Tensor forward(torch::autograd::AutogradContext* context,
                        Tensor const& x,
                        Tensor const& weight,
                        Saved how) {
    auto const part = [](Tensor const& whole) { return whole.narrow(0, first, width); };
    Tensor const kept = how == Saved::parameter  ? weight
                        : how == Saved::detached ? part(weight.detach())
                        : how == Saved::data     ? part(weight.data())
                                                 : part(weight);
    context->save_for_backward(how == Saved::in_context ? std::vector{x} : std::vector{x, kept});
    if (how == Saved::in_context) context->saved_data["part"] = kept;
    return x * part(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients) {
    auto const saved = context->get_saved_variables();
    auto part = saved.size() > 1 ? saved[1] : context->saved_data["part"].toTensor();
    if (part.size(0) > width) part = part.narrow(0, first, width);
    Tensor const of_part = (gradients[0] * saved[0]).sum(0);
    return {gradients[0] * part,
            torch::constant_pad_nd(of_part, {first, width * width - first - width}),
            Tensor()};
  }
};
/// The same in place, which makes its operand the result.
struct InPlace : torch::autograd::Function<InPlace> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x, Tensor const& weight) {
    Tensor const part = weight.narrow(0, Product::first, width);
    context->save_for_backward({x.clone(), part});
    context->mark_dirty({x});
    return x.mul_(part);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list const& gradients) {
    auto result = Product::backward(context, gradients);
    result.pop_back();
    return result;
  }
};
/// Keeps what own Functions compute, and returns nothing of it.
struct OwnImpl : torch::nn::Module {
  OwnImpl() { weight = register_parameter("weight", torch::ones({width * width})); }
  Tensor forward(Tensor const& x) {
    torch::AutoGradMode const mode(switches_on || torch::GradMode::is_enabled());
    Tensor const operand = x * 1;
    kept = in_place ? InPlace::apply(operand, weight) : Product::apply(operand, weight, how);
    if (closes_over) {
      kept.register_hook([view = weight.detach().narrow(0, 1, width)](Tensor const& gradient) {
        return gradient * view;
      });
    }
    // Views of something that changes later: autograd refuses to say what they were computed by.
    Tensor const changed = torch::zeros({2, width});
    parts = changed.unbind(0);
    changed.add_(weight.narrow(0, 0, width));
    return x * weight.narrow(0, 2, width);
  }
  Tensor weight, kept;
  std::vector<Tensor> parts;
  Saved how = Saved::view;
  bool in_place = false;
  bool closes_over = false;
  bool switches_on = false;
};
TORCH_MODULE(Own);
/// A unit around another, to which it passes a view of its own parameter.
struct OuterImpl : torch::nn::Module {
  OuterImpl() {
    gain = register_parameter("gain", torch::ones({1, width * width}));
    inner = register_module("inner", Layer());
  }
  template <class Call>
  Tensor forward(Call const& call, Tensor const& x) {
    Tensor const view = gain.view({-1}).narrow(0, 0, width);
    return call(inner, x * view) * view;
  }
  Tensor gain;
  Layer inner{nullptr};
};
TORCH_MODULE(Outer);
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    layer = register_module("layer", Layer());
    scale = register_module("scale", Scale());
    places = register_module("places", Places());
    outer = register_module("outer", Outer());
    own = register_module("own", Own());
    fill(*this, 0.);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const {
    return {layer, scale, places, outer, outer->inner, own};
  }
  Layer layer{nullptr};
  Scale scale{nullptr};
  Places places{nullptr};
  Outer outer{nullptr};
  Own own{nullptr};
};
TORCH_MODULE(Model);

/// What an order calls: of the library, or of LibTorch alone.
struct Trainer {
  Model net{};
  std::function<Tensor(Tensor)> layer, scale, places, outer, own, skip;
  std::function<void(bool last)> micro_step;
  std::function<void()> step;

  [[nodiscard]] static Tensor batch(int i) {
    return torch::cos(torch::arange(3 * width, torch::kFloat) + i).view({3, width});
  }
  /// One that a penalty may differentiate by.
  [[nodiscard]] static Tensor leaf(int i = 0) { return batch(i).set_requires_grad(true); }
  [[nodiscard]] Tensor all(Tensor const& x) const { return outer(scale(layer(x))); }
  /// The parameters of that.
  [[nodiscard]] std::vector<Tensor> in_all() const {
    std::vector<Tensor> result = net->parameters();
    std::erase_if(result, [&](Tensor const& p) {
      return p.is_same(net->places->places) || p.is_same(net->own->weight);
    });
    return result;
  }
};
Tensor slope(Tensor const& y, Tensor const& x) {
  return torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
}
Tensor penalty(Tensor const& slope) { return (slope.norm(2, {1}) - 1).square().mean(); }

/// Any backward passes but the last keep the graph, or its words say what happened.
char const* const late = "') after its gradients were reduced";
char const* const later = "got a gradient after those of unit 0 were reduced";

struct Order {
  std::string name;
  std::function<void(Trainer& t)> run;
  char const* refused = nullptr;  ///< why, where this is no order for the library
};
Order const orders[] = {
    {"one backward pass", [](Trainer& t) { t.all(t.batch(0)).mean().backward(); }},
    {"a graph that is kept for nothing",
     [](Trainer& t) { t.all(t.batch(0)).mean().backward({}, true); }},
    {"twice through one graph",
     [](Trainer& t) {
       auto const loss = t.all(t.batch(0)).mean();
       loss.backward({}, true);
       loss.backward();
     }},
    {"twice through a graph that was not kept",
     [](Trainer& t) {
       auto const loss = t.all(t.batch(0)).mean();
       loss.backward();
       loss.backward();
     },
     late},
    {"two losses of one graph",
     [](Trainer& t) {
       auto const y = t.all(t.batch(0));
       y.mean().backward({}, true);
       y.square().mean().backward();
     }},
    {"two losses of one graph, in two micro-batches",
     [](Trainer& t) {
       t.micro_step(false);
       auto const y = t.all(t.batch(0));
       y.mean().backward({}, true);
       t.micro_step(true);
       y.square().mean().backward();
     }},
    {"loss and penalty in one pass",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       (y.mean() + penalty(slope(y, x))).backward();
     }},
    {"slope, loss, penalty",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x), g = slope(y, x);
       y.mean().backward({}, true);
       penalty(g).backward();
     }},
    {"loss, slope, penalty",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       y.mean().backward({}, true);
       penalty(slope(y, x)).backward();
     }},
    {"loss, slope, penalty of a slope that the loss has, too",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       y.square().mean().backward({}, true);
       penalty(slope(y.square(), x)).backward();
     }},
    {"loss, micro_step, slope, penalty",
     [](Trainer& t) {
       t.micro_step(false);
       auto const x = t.leaf(), y = t.all(x);
       y.mean().backward({}, true);
       t.micro_step(true);
       penalty(slope(y, x)).backward();
     }},
    {"slope, loss, micro_step, penalty",
     [](Trainer& t) {
       t.micro_step(false);
       auto const x = t.leaf(), y = t.all(x), g = slope(y, x);
       y.mean().backward({}, true);
       t.micro_step(true);
       penalty(g).backward();
     }},
    {"slope, a loss that does not keep the graph, penalty of what needs none",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.outer(x.detach()) + t.scale(x), g = slope(y, x);
       t.outer(x).mean().backward();
       penalty(g).backward();
     }},
    {"loss without its graph, then a penalty",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x), g = slope(y, x);
       y.mean().backward();
       penalty(g).backward();
     },
     late},
    {"penalty, loss",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       penalty(slope(y, x)).backward({}, true);
       y.mean().backward();
     }},
    {"penalty alone",
     [](Trainer& t) {
       auto const x = t.leaf();
       penalty(slope(t.all(x), x)).backward();
     }},
    {"two graphs, both forward passes first",
     [](Trainer& t) {
       auto const a = t.all(t.batch(0)), b = t.all(t.batch(1));
       a.mean().backward();
       b.mean().backward();
     }},
    {"two graphs, the last one first, in two micro-batches",
     [](Trainer& t) {
       t.micro_step(false);
       auto const a = t.all(t.batch(0)), b = t.all(t.batch(1));
       b.mean().backward();
       t.micro_step(true);
       a.mean().backward();
     }},
    {"two graphs, two losses, then two penalties",
     [](Trainer& t) {
       auto const x = t.leaf(), z = t.leaf(1), a = t.all(x), b = t.all(z);
       a.mean().backward({}, true);
       b.mean().backward({}, true);
       auto const g = slope(a, x), h = slope(b, z);
       penalty(g).backward();
       penalty(h).backward();
     }},
    {"two graphs, each with loss and penalty",
     [](Trainer& t) {
       auto const x = t.leaf(), z = t.leaf(1), a = t.all(x), b = t.all(z);
       a.mean().backward({}, true);
       penalty(slope(a, x)).backward();
       b.mean().backward({}, true);
       penalty(slope(b, z)).backward();
     }},
    {"two graphs, two slopes, losses without their graphs, penalties",
     [](Trainer& t) {
       auto const x = t.leaf(), z = t.leaf(1), a = t.scale(x), b = t.scale(z);
       auto const g = slope(a, x), h = slope(b, z);
       a.mean().backward();
       b.mean().backward();
       penalty(g).backward();
       penalty(h).backward();
     },
     late},
    {"two graphs, and a penalty between their slopes, with a micro_step",
     [](Trainer& t) {
       t.micro_step(false);
       auto const x = t.leaf(), z = t.leaf(1), a = t.all(x), b = t.all(z);
       a.mean().backward({}, true);
       b.mean().backward({}, true);
       t.micro_step(true);
       (slope(a, x) * slope(b, z)).mean().backward();
     }},
    {"a pass with create_graph",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       y.mean().backward({}, true, true);
       penalty(x.grad() * 100).backward();
     }},
    {"a slope of something in the middle, in one pass",
     [](Trainer& t) {
       auto const h = t.layer(t.batch(0)), y = t.outer(t.scale(h));
       (y.mean() + penalty(slope(y, h))).backward();
     }},
    {"a slope of something in the middle, after the loss",
     [](Trainer& t) {
       auto const h = t.layer(t.batch(0)), y = t.outer(t.scale(h));
       y.mean().backward({}, true);
       penalty(slope(y, h)).backward();
     }},
    {"a slope that nobody differentiates, before the loss",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       CHECK(torch::autograd::grad({y.sum()}, {x}, {}, true)[0].defined());
       y.mean().backward();
     }},
    {"a slope that nobody differentiates, after the loss",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       y.mean().backward({}, true);
       CHECK(torch::autograd::grad({y.sum()}, {x}, {}, true)[0].defined());
     }},
    {"a row of the Jacobian after the other",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       for (int row = 0; row < 3; ++row) {
         CHECK(torch::autograd::grad({y[row][row]}, {x}, {}, true)[0].defined());
       }
       y.mean().backward();
     }},
    {"a third derivative",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x), g = slope(y, x);
       y.mean().backward({}, true);
       slope(slope(g, x), x).square().mean().backward();
     }},
    {"part of the outputs, and then the others",
     [](Trainer& t) {
       auto const y = t.all(t.batch(0));
       y[0].mean().backward({}, true);
       y.narrow(0, 1, 2).mean().backward();
     }},
    {"a forward pass without a graph before, between and after",
     [](Trainer& t) {
       auto const evaluate = [&] {
         torch::NoGradGuard const off;
         CHECK(t.all(t.batch(1)).requires_grad() == false);
       };
       evaluate();
       auto const x = t.leaf(), y = t.all(x);
       evaluate();
       y.mean().backward({}, true);
       auto const g = slope(y, x);
       evaluate();
       penalty(g).backward();
     }},
    {"a graph that ends without a backward pass",
     [](Trainer& t) {
       auto const x = t.leaf();
       CHECK(slope(t.all(x), x).defined());
       t.all(t.batch(1)).mean().backward();
     }},
    {"a pass for a list of inputs",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x);
       torch::autograd::backward({y.mean()}, {}, true, false, {x});
       y.square().mean().backward();
     }},
    {"a pass for some parameters",
     [](Trainer& t) {
       auto const y = t.all(t.batch(0));
       torch::autograd::backward(
           {y.mean()}, {}, true, false, {t.net->layer->linear->weight, t.net->outer->gain});
       y.square().mean().backward();
     }},
    {"a pass for some parameters, after the loss",
     [](Trainer& t) {
       auto const a = t.all(t.batch(0)), b = t.all(t.batch(1));
       (a + b).mean().backward();
       auto const c = t.layer(t.batch(2));
       torch::autograd::backward({c.mean()}, {}, {}, false, {t.net->layer->linear->weight});
     },
     later},
    {"the norm of the parameters' gradients",
     [](Trainer& t) {
       auto const loss = t.all(t.batch(0)).square().mean();
       Tensor sum = loss;
       for (auto const& g : torch::autograd::grad({loss}, t.in_all(), {}, true, true)) {
         sum = sum + g.square().sum();
       }
       sum.backward();
     }},
    {"a product with the Hessian, before the loss",
     [](Trainer& t) {
       auto const loss = t.all(t.batch(0)).square().mean();
       auto const of = t.in_all();
       Tensor sum = torch::zeros({});
       for (auto const& g : torch::autograd::grad({loss}, of, {}, true, true)) sum = sum + g.sum();
       CHECK(torch::autograd::grad({sum}, of, {}, true).size() == of.size());
       loss.backward();
     }},
    {"one unit several times, and a penalty",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.layer(t.scale(t.layer(t.layer(x)))), g = slope(y, x);
       y.mean().backward({}, true);
       penalty(g).backward();
     }},
    {"losses of several units, each with a pass",
     [](Trainer& t) {
       auto const h = t.layer(t.batch(0)), y = t.scale(h), z = t.outer(y);
       z.mean().backward({}, true);
       y.mean().backward({}, true);
       h.square().mean().backward();
     }},
    {"a penalty by one unit, detached from the loss",
     [](Trainer& t) {
       auto const h = t.layer(t.batch(0)), in = h.detach().set_requires_grad(true);
       auto const g = slope(t.outer(in), in);
       t.outer(t.scale(h)).mean().backward();
       penalty(g).backward();
     }},
    {"a derivative within a forward pass",
     [](Trainer& t) {
       t.net->scale->derives = true;
       auto const x = t.leaf(), y = t.all(x);
       y.mean().backward({}, true);
       penalty(slope(y, x)).backward();
     }},
    {"a unit that is skipped",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.outer(t.skip(t.layer(x)));
       y.mean().backward({}, true);
       penalty(slope(y, x)).backward();
     }},
    {"an output that lies in a parameter",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x + t.places(x));
       y.mean().backward({}, true);
       penalty(slope(y, x)).backward();
     }},
    {"what a unit has kept, after the loss",
     [](Trainer& t) {
       t.all(t.leaf()).mean().backward({}, true);
       t.net->scale->kept.backward();
     }},
    {"what a unit has kept, before the loss, and its slope",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x), kept = t.net->scale->kept;
       kept.backward({}, true);
       penalty(slope(kept, x)).backward({}, true);
       (y.mean() + kept).backward();
     }},
    {"what a unit has kept, after a loss without its graph",
     [](Trainer& t) {
       auto const x = t.leaf();
       t.scale(x).mean().backward();
       t.net->scale->kept.backward();
     },
     "were reduced"},
    {"a pass that fails within a unit, and another one",
     [](Trainer& t) {
       t.net->scale->fails = true;
       auto const y = t.all(t.batch(0));
       t.net->scale->fails = false;
       CHECK_THROWS_AS(y.mean().backward(), std::runtime_error);
       t.all(t.batch(1)).mean().backward();
     },
     late},
    {"a graph that is kept over a step",
     [](Trainer& t) {
       auto const y = t.all(t.batch(0));
       y.mean().backward({}, true);
       t.step();
       t.all(t.batch(1)).mean().backward();
     }},
    {"a step in the middle, and the graph before it",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.all(x), g = slope(y, x);
       y.mean().backward({}, true);
       t.step();
       penalty(g).backward();
     },
     "modified by an inplace operation"},
};

/// Backward passes of what the unit `own` has kept.
Order const of_kept[] = {
    {"alone",
     [](Trainer& t) {
       t.own(t.batch(0));
       t.net->own->kept.sum().backward();
     }},
    {"for one input, and then the others",
     [](Trainer& t) {
       auto const x = t.leaf(), y = t.own(x);
       CHECK(torch::autograd::grad({t.net->own->kept.sum()}, {x}, {}, true)[0].defined());
       (y.mean() + t.net->own->kept.sum()).backward();
     }},
    {"after the outputs",
     [](Trainer& t) {
       t.own(t.batch(0)).mean().backward({}, true);
       t.net->own->kept.square().mean().backward();
     }},
    {"after the outputs without their graph",
     [](Trainer& t) {
       t.own(t.batch(0)).mean().backward();
       t.net->own->kept.square().mean().backward();
     },
     "were reduced"},
    {"and of its slope",
     [](Trainer& t) {
       auto const x = t.leaf();
       t.own(x);
       penalty(slope(t.net->own->kept.square(), x)).backward();
     }},
    {"through another unit",
     [](Trainer& t) {
       t.own(t.batch(0));
       t.layer(t.net->own->kept).square().mean().backward();
     }},
    {"and of the outputs, of a call without a graph",
     [](Trainer& t) {
       t.net->own->switches_on = true;
       Tensor y;
       {
         torch::NoGradGuard const off;
         y = t.own(t.batch(0));
       }
       y.mean().backward({}, true);
       t.net->own->kept.square().mean().backward();
     }},
};

constexpr float of_rate = 0.5f;

/// What LibTorch alone comes to.
Tensor reference(Order const& order, int steps) {
  Trainer t;
  int micro_steps = 0;
  t.layer = [&](Tensor const& x) { return t.net->layer->forward(x); };
  t.scale = [&](Tensor const& x) { return t.net->scale->forward(x); };
  t.places = [&](Tensor const& x) { return t.net->places->forward(x); };
  t.outer = [&](Tensor const& x) { return t.net->outer->forward(plainly, x); };
  t.own = [&](Tensor const& x) { return t.net->own->forward(x); };
  t.skip = [](Tensor const& x) { return x; };
  t.micro_step = [&](bool) { ++micro_steps; };
  t.step = [&] {
    torch::NoGradGuard const off;
    for (auto& p : t.net->parameters()) {
      if (p.grad().defined())
        p.sub_(p.grad(), of_rate / static_cast<float>(std::max(micro_steps, 1)));
      p.mutable_grad() = Tensor();
    }
    micro_steps = 0;
  };
  for (int step = 0; step < steps; ++step) {
    order.run(t);
    t.step();
  }
  return floats(bytes_of(*t.net));
}

/// What this library comes to, after steps of an order or, if it is refused, of the first one, and
/// what it was refused with.
template <class Stage>
Bytes trained(Order const& order, Stage stage, int steps) {
  return on_ranks(2, [&](zero::InProcess& comm) {
    Trainer t;
    zero::libtorch::Sharded opt{comm,
                                *t.net,
                                t.net->units(),
                                stage,
                                zero::AccumulateShard{},
                                zero::Prefetch{1},
                                zero::PlainSgd{.lr = of_rate}};
    auto const call = through(opt);
    t.layer = [&](Tensor const& x) { return call(t.net->layer, x); };
    t.scale = [&](Tensor const& x) { return call(t.net->scale, x); };
    t.places = [&](Tensor const& x) { return call(t.net->places, x); };
    t.outer = [&](Tensor const& x) { return call(t.net->outer, call, x); };
    t.own = [&](Tensor const& x) { return call(t.net->own, x); };
    t.skip = [&](Tensor const& x) { return opt.skip(t.net->scale, x); };
    t.micro_step = [&](bool last) { opt.micro_step({.last = last}); };
    t.step = [&] { opt.step(); };
    if (order.refused != nullptr) {
      check_refused(
          [&] {
            try {
              order.run(t);
              opt.step();
            } catch (c10::Error const& error) {
              zero::fail(zero::ErrorKind::invalid_argument, error.what_without_backtrace());
            }
          },
          order.refused);
      opt.zero_grad();
    }
    for (int step = 0; step < steps; ++step) {
      (order.refused != nullptr ? orders[0] : order).run(t);
      opt.step();
      for (auto const& p : t.net->parameters()) CHECK(!p.grad().defined());
    }
    auto const whole = opt.full_parameters();
    return bytes_of(*t.net);
  });
}

/// Is an order right under every stage, or refused?
void check(Order const& order) {
  constexpr int steps = 2;
  INFO(order.name);
  auto const bytes = trained(order, zero::stage::PosGP{}, steps);
  REQUIRE(!bytes.empty());
  CHECK(trained(order, zero::stage::PosG{}, steps) == bytes);
  CHECK(trained(order, zero::stage::Pos{}, steps) == bytes);
  CHECK(trained(order, zero::stage::Replicated{}, steps) == bytes);
  if (order.refused != nullptr) return;
  auto const expected = reference(order, steps);
  double const away = distance(floats(bytes), expected);
  CAPTURE(away);
  CHECK(away < 1e-6);
  CHECK(distance(floats(bytes_of(*Model())), expected) > 1e-5);
}

TEST_CASE("no order of backward passes ends in a signal: it is right, or refused in words") {
  at::set_num_threads(1);
  for (Order const& order : orders) check(order);
}

TEST_CASE("what an own Function has saved is there in every backward pass of what a unit keeps") {
  at::set_num_threads(1);
  struct Way {
    char const* name;
    void (*choose)(OwnImpl& unit);
  };
  for (Way const& way : {
           Way{"the parameter", [](OwnImpl& unit) { unit.how = Saved::parameter; }},
           Way{"a view", [](OwnImpl& unit) { unit.how = Saved::view; }},
           Way{"a detached view", [](OwnImpl& unit) { unit.how = Saved::detached; }},
           Way{"a view in its context", [](OwnImpl& unit) { unit.how = Saved::in_context; }},
           Way{"a view of data()", [](OwnImpl& unit) { unit.how = Saved::data; }},
           Way{"a view, in place", [](OwnImpl& unit) { unit.in_place = true; }},
           Way{"a view, with another in a hook", [](OwnImpl& unit) { unit.closes_over = true; }},
       }) {
    for (Order const& of : of_kept) {
      check({std::string(way.name) + ", " + of.name,
             [&](Trainer& t) {
               way.choose(*t.net->own);
               of.run(t);
             },
             of.refused});
    }
  }
}

TEST_CASE("a backward pass that comes after the parameters of its graph have gone is refused") {
  zero::Self comm;
  Own unit;
  auto const x = Trainer::leaf();
  auto const of = [&](Tensor const& y) { return torch::autograd::grad({y.sum()}, {x})[0]; };
  {
    zero::libtorch::Sharded opt{comm, *unit, {unit}, zero::stage::PosGP{}};
    Tensor y;
    {
      auto const whole = opt.full_parameters();
      CHECK(of(unit->forward(x)).equal(of(opt.forward(unit, x))));
      CHECK(of(unit->kept).defined());
      y = torch::tanh(unit->forward(x));
    }
    char const* const why = "after the full_parameters() that its forward pass was in";
    check_refused([&] { y.sum().backward(); }, why);
    check_refused([&] { unit->kept.sum().backward(); }, why);
    static_cast<void>(opt.forward(unit, x));
  }
  check_refused([&] { unit->kept.sum().backward(); }, "after the end of its Sharded");
}

}  // namespace orders_test
