/// Parameter groups whose rules move: the trajectory of LibTorch's own optimizer.
#include <zero/adapt/libtorch.hpp>
#include <zero/zero.hpp>

#include <doctest/doctest.h>
#include <torch/torch.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace groups_test {

constexpr int steps = 40;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    hidden = register_module("hidden", torch::nn::Linear(6, 13));
    out = register_module("out", torch::nn::Linear(13, 5));
    torch::NoGradGuard const off;
    double phase = 0.;
    for (auto& p : parameters()) {
      p.copy_(torch::sin(torch::arange(p.numel(), torch::kDouble) + phase).mul(0.3).view_as(p));
      phase += 0.7;
    }
  }
  torch::Tensor loss(int batch) {
    auto const x = torch::cos(torch::arange(8 * 6, torch::kFloat) * 0.3 + batch).view({8, 6});
    auto const target = torch::arange(8).mul(3).add(batch).remainder(5);
    return torch::nn::functional::cross_entropy(out(torch::tanh(hidden(x))), target);
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

bool is_bias(std::string const& name) { return name.ends_with("bias"); }
/// Weights warm up; biases have other numbers, and change them twice.
float rate_at(int step) { return 0.01f * static_cast<float>(step + 1) / steps; }
float bias_rate_at(int step) { return step < 20 ? 0.05f : 0.002f; }
double bias_beta1_at(int step) { return step < 30 ? 0.5 : 0.8; }

torch::Tensor flat(Net& net) {
  std::vector<torch::Tensor> all;
  for (auto const& p : net->parameters()) all.push_back(p.detach().flatten());
  return torch::cat(all);
}

torch::Tensor by_libtorch(bool moves) {
  Net net;
  std::vector<torch::Tensor> weights, biases;
  for (auto const& named : net->named_parameters()) {
    (is_bias(named.key()) ? biases : weights).push_back(named.value());
  }
  auto const options = [](double lr, double beta1, double decay) {
    return torch::optim::AdamWOptions(lr).betas(std::tuple(beta1, 0.999)).weight_decay(decay);
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(weights);
  groups.emplace_back(biases);
  torch::optim::AdamW opt(groups, options(0.01, 0.9, 0.1));
  for (int step = 0; step < steps; ++step) {
    auto& bias = static_cast<torch::optim::AdamWOptions&>(opt.param_groups()[1].options());
    if (moves) opt.param_groups()[0].options().set_lr(double{rate_at(step)});
    if (moves) bias = options(double{bias_rate_at(step)}, bias_beta1_at(step), 0.);
    opt.zero_grad();
    for (int rank : {0, 1}) (net->loss(2 * step + rank) / 2).backward();
    opt.step();
  }
  return flat(net);
}

template <class Stage>
torch::Tensor by_groups() {
  torch::Tensor result;
  zero::run_ranks(2, [&](zero::InProcess& comm) {
    Net net;
    auto model = zero::libtorch::describe(*net);
    for (zero::Tensor& tensor : model.tensors) {
      if (is_bias(tensor.name)) tensor.group = "biases";
    }
    zero::libtorch::Optimizer opt{
        comm, std::move(model), Stage{}, zero::AdamW{.lr = 0.01f, .weight_decay = 0.1f}};
    for (int step = 0; step < steps; ++step) {
      opt.set_lr(rate_at(step));
      opt.core().set_rule(
          "biases", {.lr = bias_rate_at(step), .beta1 = bias_beta1_at(step), .weight_decay = 0.f});
      net->loss(2 * step + comm.rank()).backward();
      opt.step();
      opt.zero_grad();
    }
    CHECK(opt.lr() == rate_at(steps - 1));
    if (comm.rank() == 0) result = flat(net);
  });
  return result;
}

TEST_CASE("groups follow LibTorch's own AdamW, whose groups move alike") {
  at::set_num_threads(1);
  auto const theirs = by_libtorch(true);
  auto const distance = [&](torch::Tensor const& ours) {
    return ((ours - theirs).norm() / theirs.norm()).item<double>();
  };
  CHECK(distance(by_groups<zero::stage::Replicated>()) < 1e-5);
  CHECK(distance(by_groups<zero::stage::PosG>()) < 1e-5);
  CHECK(distance(by_libtorch(false)) > 1e-2);
}

}  // namespace groups_test
