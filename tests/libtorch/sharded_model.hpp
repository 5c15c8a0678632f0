/// @file
/// A small model, trained by the library and by LibTorch alone.
#pragma once

#include <zero/adapt/libtorch.hpp>
#include <zero/zero.hpp>

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace libtorch_tests {

constexpr float rate = 0.02f;

/// Random numbers of LibTorch's come from one generator of the whole process.
inline void fill(torch::nn::Module& module, double phase) {
  torch::NoGradGuard const off;
  for (auto& p : module.parameters()) {
    p.copy_(torch::sin(torch::arange(p.numel(), torch::kDouble) + phase).mul(0.3).view_as(p));
    phase += 0.7;
  }
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
    for (int i = 0; i < 2; ++i) x = torch::tanh(call(layer, x * scale));
    return call(out, x).square().mean();
  }
  template <class Call>
  torch::Tensor loss(int batch, Call const& call) {
    RootedImpl* const self = this;
    return call(self, call, torch::cos(torch::arange(12, torch::kFloat) + 7 * batch).view({3, 4}));
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

inline std::vector<std::uint8_t> bytes_of(torch::nn::Module& module) {
  std::vector<std::uint8_t> bytes;
  for (auto const& p : module.parameters()) {
    auto const* const data = static_cast<std::uint8_t const*>(p.data_ptr());
    bytes.insert(bytes.end(), data, data + p.nbytes());
  }
  return bytes;
}

/// All parameters in a row.
inline torch::Tensor flat(torch::nn::Module& module) {
  torch::NoGradGuard const off;
  std::vector<torch::Tensor> all;
  for (auto const& p : module.parameters()) all.push_back(p.flatten().to(torch::kDouble));
  return torch::cat(all).clone();
}
/// Relative l2.
inline double distance(torch::Tensor const& ours, torch::Tensor const& theirs) {
  return ((ours - theirs).norm() / theirs.norm()).item<double>();
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
template <class NetT, class Loss>
torch::Tensor averaged_by_libtorch(
    NetT& net, int ranks, int steps, int micro_batches, Loss const& loss_of) {
  torch::optim::AdamW opt(trainable(*net), torch::optim::AdamWOptions(rate).weight_decay(1e-2));
  for (int step = 0; step < steps; ++step) {
    opt.zero_grad();
    for (auto& p : net->parameters()) p.mutable_grad() = torch::Tensor();
    for (int micro = 0; micro < micro_batches; ++micro) {
      for (int rank = 0; rank < ranks; ++rank) {
        (loss_of(net, rank, step, micro) / (ranks * micro_batches)).backward();
      }
    }
    opt.step();
  }
  return flat(*net);
}

/// Runs `body(comm, rank's result)` on threads; all ranks must come to the same.
template <class Body>
std::vector<std::uint8_t> on_ranks(int ranks, Body const& body) {
  std::vector<std::vector<std::uint8_t>> results(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    results[static_cast<std::size_t>(comm.rank())] = body(comm);
  });
  for (auto const& each : results) {
    if (each != results.front()) return {};
  }
  return results.front();
}

/// The same as numbers of fp32.
inline torch::Tensor floats(std::vector<std::uint8_t> bytes) {
  return torch::from_blob(
             bytes.data(), {static_cast<std::int64_t>(bytes.size() / sizeof(float))}, torch::kFloat)
      .to(torch::kDouble);
}

constexpr int steps = 6;

inline int batch_of(int ranks, int rank, int step, int micro, int micro_batches) {
  return (step * micro_batches + micro) * ranks + rank;
}

/// What a rank has after a few steps.
template <class Stage, class Accumulation, class Precision, class Comm>
std::vector<std::uint8_t> trained_on(Comm& comm, int micro_batches, torch::ScalarType type) {
  Net net;
  net->to(type);
  zero::libtorch::Sharded sharded{
      comm, *net, net->units(), Stage{}, Accumulation{}, Precision{}, zero::AdamW{.lr = rate}};
  for (int step = 0; step < steps; ++step) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      if (micro_batches > 1) sharded.micro_step({.last = micro + 1 == micro_batches});
      net->loss(batch_of(comm.size(), comm.rank(), step, micro, micro_batches), through(sharded))
          .backward();
    }
    sharded.step();
    sharded.zero_grad();
  }
  auto const all = sharded.full_parameters();
  return bytes_of(*net);
}

/// The same by LibTorch alone.
inline torch::Tensor reference(int ranks, int micro_batches) {
  Net net;
  return averaged_by_libtorch(
      net, ranks, steps, micro_batches, [&](Net& model, int rank, int step, int micro) {
        return model->loss(batch_of(ranks, rank, step, micro, micro_batches), plainly);
      });
}

/// What an error says; or that there was none.
template <class Act>
std::string refusal(Act const& act) {
  try {
    act();
  } catch (zero::Error const& error) {
    return error.what();
  }
  return "nothing was refused";
}

}  // namespace libtorch_tests
