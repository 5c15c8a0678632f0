#include <zero/adapt/libtorch.hpp>
#include <zero/zero.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace optimizer_test {

using zero::libtorch::describe;
using zero::libtorch::Optimizer;

/// An embedding whose weight is the head's as well, a frozen layer, two that train.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(11, 6));
    frozen = register_module("frozen", torch::nn::Linear(6, 6));
    hidden = register_module("hidden", torch::nn::Linear(6, 13));
    out = register_module("out", torch::nn::Linear(13, 6));
    head = register_parameter("head", embedding->weight);
    for (auto& p : frozen->parameters()) p.set_requires_grad(false);
    fill(0.);
  }
  /// Random numbers of LibTorch's come from one generator of the whole process.
  void fill(double phase) {
    torch::NoGradGuard const off;
    for (auto& p : parameters()) {
      p.copy_(torch::sin(torch::arange(p.numel(), torch::kDouble) + phase).mul(0.3).view_as(p));
      phase += 0.7;
    }
  }
  torch::Tensor loss(int batch) {
    auto const ids = torch::arange(8).mul(3).add(batch).remainder(11);
    auto const next = torch::arange(8).mul(5).add(batch + 1).remainder(11);
    auto x = torch::tanh(frozen(embedding(ids)));
    x = out(torch::relu(hidden(x)));
    return torch::nn::functional::cross_entropy(torch::matmul(x, head.t()).to(torch::kFloat), next);
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear frozen{nullptr}, hidden{nullptr}, out{nullptr};
  torch::Tensor head;
};
TORCH_MODULE(Net);

constexpr float rate = 0.02f;

std::vector<std::uint8_t> bytes_of(torch::nn::Module& module) {
  std::vector<std::uint8_t> bytes;
  for (auto const& p : module.parameters()) {
    auto const* const data = static_cast<std::uint8_t const*>(p.data_ptr());
    bytes.insert(bytes.end(), data, data + p.nbytes());
  }
  return bytes;
}

template <class Opt>
void train(Net& net, Opt& opt, int ranks, int rank, int first, int steps, int micro_batches) {
  for (int step = first; step < first + steps; ++step) {
    for (int micro = 0; micro < micro_batches; ++micro) {
      net->loss((step * micro_batches + micro) * ranks + rank).backward();
    }
    if (micro_batches > 1) opt.reduce_all(micro_batches);
    opt.step();
    opt.zero_grad(step % 2 == 0);
  }
}

/// What the first rank has after a few steps; all ranks have the same.
template <class Stage, class Precision = zero::Fp32>
std::vector<std::uint8_t> trained(int ranks, int micro_batches, torch::ScalarType type) {
  std::vector<std::vector<std::uint8_t>> results(static_cast<std::size_t>(ranks));
  zero::run_ranks(ranks, [&](zero::InProcess& comm) {
    Net net;
    net->to(type);
    Optimizer opt{comm, *net, Stage{}, Precision{}, zero::AdamW{.lr = rate}};
    train(net, opt, ranks, comm.rank(), 0, 6, micro_batches);
    results[static_cast<std::size_t>(comm.rank())] = bytes_of(*net);
  });
  for (auto const& each : results) CHECK(each == results.front());
  return results.front();
}

/// LibTorch's own optimizer over gradients that are averaged as data-parallel training does.
torch::Tensor averaged_by_libtorch(int ranks, int micro_batches) {
  Net net;
  std::vector<torch::Tensor> trainable;
  for (auto const& p : net->parameters()) {
    bool const seen = std::any_of(
        trainable.begin(), trainable.end(), [&](auto const& other) { return other.is_same(p); });
    if (p.requires_grad() && !seen) trainable.push_back(p);
  }
  torch::optim::AdamW opt(trainable, torch::optim::AdamWOptions(rate).weight_decay(1e-2));
  for (int step = 0; step < 6; ++step) {
    opt.zero_grad();
    for (int batch = 0; batch < ranks * micro_batches; ++batch) {
      auto const micro = batch / ranks, rank = batch % ranks;
      (net->loss((step * micro_batches + micro) * ranks + rank) / (ranks * micro_batches))
          .backward();
    }
    opt.step();
  }
  std::vector<torch::Tensor> flat;
  for (auto const& p : net->parameters()) flat.push_back(p.detach().flatten());
  return torch::cat(flat);
}

TEST_CASE("stages up to Pos+g have the same bits, and LibTorch's own averaged training") {
  at::set_num_threads(1);
  for (int const ranks : {1, 3, 4}) {
    for (int const micro_batches : {1, 2}) {
      CAPTURE(ranks);
      CAPTURE(micro_batches);
      auto bytes = trained<zero::stage::Replicated>(ranks, micro_batches, torch::kFloat);
      CHECK(trained<zero::stage::Pos>(ranks, micro_batches, torch::kFloat) == bytes);
      CHECK(trained<zero::stage::PosG>(ranks, micro_batches, torch::kFloat) == bytes);
      auto const ours = torch::from_blob(
          bytes.data(), {static_cast<std::int64_t>(bytes.size() / sizeof(float))}, torch::kFloat);
      auto const theirs = averaged_by_libtorch(ranks, micro_batches);
      auto const distance = ((ours - theirs).norm() / theirs.norm()).item<double>();
      CAPTURE(distance);
      CHECK(distance < 1e-5);
      Net untouched;
      CHECK(bytes != bytes_of(*untouched));
    }
  }
}

TEST_CASE("stages up to Pos+g have the same bits in bf16, on three ranks") {
  at::set_num_threads(1);
  using Mixed = zero::Mixed<zero::bf16>;
  auto const bytes = trained<zero::stage::Replicated, Mixed>(3, 2, torch::kBFloat16);
  CHECK(trained<zero::stage::Pos, Mixed>(3, 2, torch::kBFloat16) == bytes);
  CHECK(trained<zero::stage::PosG, Mixed>(3, 2, torch::kBFloat16) == bytes);
  Net untouched;
  untouched->to(torch::kBFloat16);
  CHECK(bytes != bytes_of(*untouched));
}

TEST_CASE("every rank starts from the first one's parameters, frozen ones too") {
  zero::run_ranks(3, [](zero::InProcess& comm) {
    Net net, first;
    net->fill(comm.rank());
    Optimizer const opt{comm, *net};
    CHECK(bytes_of(*net) == bytes_of(*first));
  });
}

TEST_CASE("gradients that moved are found again, and what was read before is not read again") {
  zero::Self comm;
  Net net, same;
  Optimizer opt{comm, *net, zero::AdamW{.lr = rate}};
  Optimizer other{comm, *same, zero::AdamW{.lr = rate}};
  std::vector<torch::Tensor> kept;  // so that no new gradient lies where an old one did
  for (int step = 0; step < 3; ++step) {
    net->loss(step).backward();
    for (auto const& p : net->parameters()) kept.push_back(p.grad());
    opt.step();
    opt.zero_grad();
    for (auto& each : kept) {
      if (each.defined()) each.fill_(1e6);
    }
    same->loss(step).backward();
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

/// Whether a rank's backward pass reaches a parameter; in some steps no rank's does.
bool reached(int step, std::size_t p, int rank) {
  unsigned const mixed =
      (static_cast<unsigned>(step) * 7919u + static_cast<unsigned>(p) * 104729u) >> 2;
  return mixed % 3 != 0 && (rank == 0 || mixed % 5 != 0);
}
torch::Tensor some_gradient(torch::Tensor const& like, int step, int rank) {
  return torch::sin(torch::arange(like.numel(), torch::kDouble) + step + 10. * rank)
      .to(torch::kFloat)
      .view_as(like);
}

TEST_CASE("what the backward pass of no rank reaches rests, as with LibTorch's own AdamW") {
  constexpr int steps = 30;
  torch::nn::Sequential theirs(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  torch::nn::Sequential start(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
  auto const copy = [](torch::nn::Sequential& to, torch::nn::Sequential& from) {
    torch::NoGradGuard const off;
    auto const values = from->parameters();
    auto all = to->parameters();
    for (std::size_t p = 0; p < all.size(); ++p) all[p].copy_(values[p]);
  };
  copy(theirs, start);
  auto parameters = theirs->parameters();
  torch::optim::AdamW opt(parameters, torch::optim::AdamWOptions(rate).weight_decay(1e-2));
  std::vector<long> updates(parameters.size(), 0);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      torch::Tensor sum;
      for (int const rank : {0, 1}) {
        if (!reached(step, p, rank)) continue;
        auto const part = some_gradient(parameters[p], step, rank) / 2;
        sum = sum.defined() ? sum + part : part;
      }
      parameters[p].mutable_grad() = sum;
      if (sum.defined()) ++updates[p];
    }
    opt.step();
  }
  CHECK(updates[0] < steps);
  CHECK(updates[0] > steps / 3);
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    torch::nn::Sequential ours(torch::nn::Linear(5, 7), torch::nn::Linear(7, 3));
    copy(ours, start);
    Optimizer own{comm, *ours, zero::AdamW{.lr = rate}};
    auto mine = ours->parameters();
    for (int step = 0; step < steps; ++step) {
      for (std::size_t p = 0; p < mine.size(); ++p) {
        mine[p].mutable_grad() = reached(step, p, comm.rank())
                                     ? some_gradient(mine[p], step, comm.rank())
                                     : torch::Tensor();
      }
      own.step();
    }
    for (std::size_t p = 0; p < mine.size(); ++p) {
      CHECK(own.core().steps(p) == updates[p]);
      double const distance =
          ((mine[p] - parameters[p]).norm() / parameters[p].norm()).item<double>();
      CHECK(distance < 1e-5);
    }
  });
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

TEST_CASE("clipping and the learning rate are the optimizer's own") {
  zero::Self comm;
  Net by_call, by_option;
  Optimizer opt{comm, *by_call, zero::PlainSgd{.lr = 1.f}};
  Optimizer other{comm, *by_option, zero::PlainSgd{.lr = 1.f}};
  opt.set_lr(0.125f);
  CHECK(opt.lr() == 0.125f);
  by_call->loss(0).backward();
  by_option->loss(0).backward();
  auto const gradient = by_call->out->weight.grad().clone();
  double const norm = opt.clip_grad_norm(0.01);
  zero::StepReport const clipped = opt.step();
  zero::StepReport const report = other.step({.learning_rate = 0.125f, .max_norm = 0.01});
  CHECK(norm == report.grad_norm);
  CHECK(norm > 0.01);
  CHECK(clipped.clip_coefficient == report.clip_coefficient);
  CHECK(bytes_of(*by_call) == bytes_of(*by_option));
  CHECK(by_call->out->weight.grad().equal(gradient));  // local, and not clipped
  by_call->loss(1).backward();
  CHECK(opt.step().clip_coefficient == 1.);  // one step, one clip
}

TEST_CASE("a backward pass through a graph of before a step is refused by autograd") {
  zero::Self comm;
  Net net;
  Optimizer opt{comm, *net};
  auto const before = net->loss(0);
  net->loss(1).backward();
  opt.step();
  CHECK_THROWS_WITH_AS(
      before.backward(), doctest::Contains("modified by an inplace operation"), c10::Error);
}

std::string refusal(std::function<void()> const& work) {
  try {
    work();
  } catch (zero::Error const& error) {
    CHECK(error.kind() == zero::ErrorKind::invalid_argument);
    return error.what();
  }
  return "nothing was refused";
}

bool says(std::string const& error, std::string const& words) {
  return error.find(words) != std::string::npos;
}

struct Bag : torch::nn::Module {
  explicit Bag(std::vector<torch::Tensor> const& tensors) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      all.push_back(register_parameter("p" + std::to_string(t), tensors[t]));
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
    CHECK(static_cast<std::int64_t>(zero::element_count(tensor)) == model.parameters[t].numel());
    CHECK(model.parameters[t].is_same(net->named_parameters()[names[t]]));
    if (names[t] == "hidden.weight") CHECK(tensor.shape == std::vector<std::size_t>{13, 6});
  }
  CHECK(model.tensors.front().name == "head");  // a module's own come before its children's
  CHECK(model.tensors.front().tied_to.empty());
  CHECK(model.tensors[1].name == "embedding.weight");
  CHECK(model.tensors[1].tied_to == "head");
}

TEST_CASE("what cannot be lent is refused by name") {
  auto const of = [](std::vector<torch::Tensor> const& tensors) {
    Bag bag(tensors);
    return refusal([&] { static_cast<void>(describe(bag)); });
  };
  auto const memory = torch::zeros({4, 4});
  CHECK(says(of({torch::zeros({2}), memory.narrow(1, 0, 2)}), "'p1' is a view whose elements"));
  CHECK(says(of({memory.t()}), "'p0' is a view whose elements"));
  CHECK(says(of({memory.narrow(0, 0, 2), memory.narrow(0, 1, 2)}),
             "'p1' shares a part of its memory with 'p0'"));
  CHECK(says(of({memory, memory.view({16})}), "'p1' shares a part of its memory with 'p0'"));
  CHECK(says(of({torch::zeros({2}), torch::zeros({2}, torch::kDouble)}),
             "'p1' has the type Double, but 'p0' Float"));
  CHECK(says(of({torch::zeros({2}), torch::zeros({2}, torch::kMeta)}), "'p1' lies on meta"));
  CHECK(says(of({torch::zeros({2}), torch::zeros({2}).to_sparse()}), "'p1' is sparse"));
  CHECK(of({memory.narrow(0, 0, 2), memory.narrow(0, 2, 2)}) == "nothing was refused");

  torch::nn::Sequential net(torch::nn::Linear(2, 2),
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(3, 2).sparse(true)));
  CHECK(says(refusal([&] { static_cast<void>(describe(*net)); }),
             "module '1' makes sparse gradients"));

  zero::Self comm;
  Bag doubles({torch::zeros({2}, torch::kDouble)});
  CHECK(says(refusal([&] {
               Optimizer opt{comm, doubles};
             }),
             "'p0' has the type Double, but the precision says Float"));
  Bag bag({torch::zeros({2, 2})});
  Optimizer opt{comm, bag};
  bag.all[0].mutable_grad() = torch::zeros({2, 4}).narrow(1, 0, 2);
  CHECK(says(refusal([&] { opt.step(); }), "gradient of parameter 'p0' is a view"));
}

}  // namespace optimizer_test
