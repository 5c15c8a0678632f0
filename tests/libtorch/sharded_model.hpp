/// @file
/// Small models, trained by the library and by LibTorch alone.
#pragma once

#include "support/refusal.hpp"
#include <zero/adapt/libtorch.hpp>
#include <zero/zero.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace libtorch_tests {

constexpr float rate = 0.02f;
constexpr int steps = 6;
using Bytes = std::vector<std::uint8_t>;

/// Random numbers of LibTorch's come from one generator of the whole process.
inline void fill(torch::nn::Module& module, double phase) {
  torch::NoGradGuard const off;
  for (auto& p : module.parameters()) {
    p.copy_(torch::sin(torch::arange(p.numel(), torch::kDouble) + phase).mul(0.3).view_as(p));
    phase += 0.7;
  }
}

/// A batch of three for a layer of four inputs.
inline torch::Tensor input(int batch) {
  return torch::cos(torch::arange(12, torch::kFloat) + batch).view({3, 4});
}

/// Scores of words: its weight may be another module's.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(torch::Tensor const& shared) {
    weight = register_parameter("weight", shared, shared.requires_grad());
  }
  torch::Tensor forward(torch::Tensor const& x) { return torch::matmul(x, weight.t()); }
  torch::Tensor weight;
};
TORCH_MODULE(Head);

/// An embedding whose weight is the head's as well, a frozen layer, two that train.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    frozen = register_module("frozen", torch::nn::Linear(6, 6));
    hidden = register_module("hidden", torch::nn::Linear(6, 13));
    out = register_module("out", torch::nn::Linear(13, 6));
    head = register_module("head", Head(embedding->weight));
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
    fill(*this, 0.);
  }
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const {
    return {embedding, frozen, hidden, out, head};
  }
  /// @param call  `call(unit, input)` is the unit's output
  template <class Call>
  torch::Tensor loss(int batch, Call const& call) {
    auto const ids = torch::arange(8).mul(3).add(batch).remainder(11);
    auto const next = torch::arange(8).mul(5).add(batch + 1).remainder(11);
    auto x = torch::tanh(call(frozen, call(embedding, ids)));
    x = x + call(out, torch::relu(call(hidden, x)));
    return torch::nn::functional::cross_entropy(call(head, x).to(torch::kFloat), next);
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear frozen{nullptr}, hidden{nullptr}, out{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(Net);

/// A model with a parameter of its own, and one layer under two names.
struct RootedImpl : torch::nn::Module {
  RootedImpl() {
    scale = register_parameter("scale", torch::ones({4}));
    layer = register_module("layer", torch::nn::Linear(4, 4));
    register_module("again", layer);
    out = register_module("out", torch::nn::Linear(4, 2));
    fill(*this, 0.);
  }
  /// The model itself is a unit, around the others.
  [[nodiscard]] std::vector<zero::libtorch::Unit> units() const { return {*this, layer, out}; }
  template <class Call>
  torch::Tensor forward(Call const& call, torch::Tensor x) {
    for (int i = 0; i < 3; ++i) x = torch::tanh(call(layer, x * scale));
    return call(out, x).square().mean();
  }
  template <class Call>
  torch::Tensor loss(int batch, Call const& call) {
    RootedImpl* const self = this;
    return call(self, call, input(7 * batch));
  }
  torch::Tensor scale;
  torch::nn::Linear layer{nullptr}, out{nullptr};
};
TORCH_MODULE(Rooted);

/// LibTorch's own way to call a unit, and the library's.
inline constexpr auto plainly = [](auto& unit, auto const&... x) { return unit->forward(x...); };
template <class Sharded>
auto through(Sharded& sharded) {
  return [&sharded](auto& unit, auto const&... x) { return sharded.forward(unit, x...); };
}

inline Bytes bytes_of(torch::nn::Module& module) {
  Bytes bytes;
  for (auto const& p : module.parameters()) {
    auto const* const data = static_cast<std::uint8_t const*>(p.data_ptr());
    bytes.insert(bytes.end(), data, data + p.nbytes());
  }
  return bytes;
}
/// The same as numbers, of bytes of fp32.
inline torch::Tensor floats(Bytes bytes) {
  auto const count = static_cast<std::int64_t>(bytes.size() / sizeof(float));
  return torch::from_blob(bytes.data(), {count}, torch::kFloat).to(torch::kDouble);
}
/// Relative l2.
inline double distance(torch::Tensor const& ours, torch::Tensor const& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
}

/// Did all ranks come to the same, which is LibTorch's `expected`, far from what `Model` begins
/// with?
template <class Model>
void check_trained(Bytes const& bytes, torch::Tensor const& expected) {
  REQUIRE(!bytes.empty());
  double const away = distance(floats(bytes), expected);
  CAPTURE(away);
  CHECK(away < 1e-5);
  Model untouched;
  CHECK(distance(floats(bytes_of(*untouched)), expected) > 1e-2);
}

/// Is `work` refused as a caller's mistake, and does the library say `why`?
template <class Work>
void check_refused(Work&& work, std::string const& why) {
  CAPTURE(why);
  std::string const said = refusal(work);
  CAPTURE(said);
  CHECK(said.find(why) != std::string::npos);
}

/// Parameters that train, each once.
inline std::vector<torch::Tensor> trainable(torch::nn::Module& module) {
  std::vector<torch::Tensor> result;
  for (auto const& p : module.parameters()) {
    bool const seen = std::any_of(
        result.begin(), result.end(), [&](auto const& other) { return other.is_same(p); });
    if (p.requires_grad() && !seen) result.push_back(p);
  }
  return result;
}

/// LibTorch's own optimizer over gradients that are averaged as data-parallel training does.
/// `loss_of(net, rank, step, micro)` is one rank's.
template <class Net, class Loss>
torch::Tensor averaged_by_libtorch(
    Net& net, int ranks, int all_steps, int micro_batches, Loss const& loss_of) {
  torch::optim::AdamW opt(trainable(*net), torch::optim::AdamWOptions(rate).weight_decay(1e-2));
  for (int step = 0; step < all_steps; ++step) {
    for (auto& p : net->parameters()) p.mutable_grad() = torch::Tensor();
    for (int micro = 0; micro < micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        (loss_of(net, rank, step, micro) / (ranks * micro_batches)).backward();
      }
    }
    opt.step();
  }
  return floats(bytes_of(*net));
}

/// Runs `body(comm)` on threads; all ranks must come to the same, or nothing is returned.
template <class Body>
Bytes on_ranks(int ranks, Body const& body) {
  std::vector<Bytes> results(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    results[static_cast<std::size_t>(comm.rank())] = body(comm);
  });
  for (auto const& each : results) {
    if (each != results.front()) return {};
  }
  return results.front();
}

using zero::libtorch::describe, zero::libtorch::Description;

/// What a rank has after `body(opt, call)` with either class, where `call` calls a unit.
template <class Comm, class Body, class... Policies>
Bytes with_sharded(Comm& comm,
                   torch::nn::Module& net,
                   Description model,
                   Body const& body,
                   Policies const&... policies) {
  zero::libtorch::Sharded opt{comm, std::move(model), policies...};
  body(opt, through(opt));
  auto const all = opt.full_parameters();
  return bytes_of(net);
}
template <class Comm, class Body, class... Policies>
Bytes with_optimizer(Comm& comm,
                     torch::nn::Module& net,
                     Description model,
                     Body const& body,
                     Policies const&... policies) {
  zero::libtorch::Optimizer opt{comm, std::move(model), policies...};
  body(opt, plainly);
  return bytes_of(net);
}

/// A few steps of a rank, and what it has then.
struct Run {
  int ranks = 3;
  int micro_batches = 1;
  torch::ScalarType type = torch::kFloat;

  template <class Model = Net, class Comm, class... Policies>
  Bytes sharded_on(Comm& comm, Policies const&... policies) const {
    Model net;
    net->to(type);
    return with_sharded(comm,
                        *net,
                        describe(*net, net->units()),
                        training(net, comm.rank()),
                        zero::AdamW{.lr = rate},
                        policies...);
  }
  template <class Model = Net, class... Policies>
  [[nodiscard]] Bytes sharded(Policies const&... policies) const {
    return on_ranks(ranks,
                    [&](zero::InProcess& comm) { return sharded_on<Model>(comm, policies...); });
  }
  template <class Model = Net, class... Policies>
  [[nodiscard]] Bytes optimizer(Policies const&... policies) const {
    return on_ranks(ranks, [&](zero::InProcess& comm) {
      Model net;
      net->to(type);
      return with_optimizer(comm,
                            *net,
                            describe(*net),
                            training(net, comm.rank()),
                            zero::AdamW{.lr = rate},
                            policies...);
    });
  }
  /// The same by LibTorch alone.
  template <class Model = Net>
  [[nodiscard]] torch::Tensor libtorch() const {
    Model net;
    return averaged_by_libtorch(
        net, ranks, steps, micro_batches, [&](Model& model, int rank, int step, int micro) {
          return model->loss(batch(step, micro, rank), plainly);
        });
  }

 private:
  [[nodiscard]] int batch(int step, int micro, int rank) const {
    return (step * micro_batches + micro) * ranks + rank;
  }
  template <class Model>
  [[nodiscard]] auto training(Model& net, int rank) const {
    return [this, &net, rank](auto& opt, auto const& call) {
      constexpr bool sharded = requires { opt.full_parameters(); };
      for (int step = 0; step < steps; ++step) {
        for (int micro = 0; micro < micro_batches; ++micro) {
          if constexpr (sharded) {
            if (micro_batches > 1) opt.micro_step({.last = micro + 1 == micro_batches});
          }
          net->loss(batch(step, micro, rank), call).backward();
        }
        if constexpr (sharded) {
          opt.step();
          opt.zero_grad();
        } else {
          if (micro_batches > 1) opt.reduce_all(micro_batches);
          opt.step();
          opt.zero_grad(step % 2 == 0);
        }
      }
    };
  }
};

}  // namespace libtorch_tests
