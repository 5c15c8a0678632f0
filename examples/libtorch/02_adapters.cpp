// LibTorch: four ranks train adapters (LoRA) of a frozen base in 8 bits, of which each holds a
// quarter.
//
// The library knows nothing of the code: parameters of integers are bytes to it, which it
// partitions and gathers with their unit. What requires no gradient has no optimizer states.
// prints: 4 ranks, loss [0-9]+[.][0-9]+ to 0[.]0[0-9]+
#include <zero/adapt/libtorch.hpp>

#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

constexpr int width = 32;

// A matrix of 8-bit codes, one scale for each row, and beside it two thin matrices that are
// trained.
struct AdaptedImpl : torch::nn::Module {
  AdaptedImpl() {
    auto const weight = torch::randn({width, width}) / 6.;
    scale = register_parameter("scale", weight.abs().amax(1, true) / 127., false);
    codes = register_parameter("codes", (weight / scale).round().to(torch::kChar), false);
    down = register_parameter("down", torch::randn({4, width}) / 6.);
    up = register_parameter("up", torch::zeros({width, 4}));
  }
  torch::Tensor forward(torch::Tensor const& x) {
    auto const base = codes.to(torch::kFloat) * scale;
    return x.matmul(base.t()) + x.matmul(down.t()).matmul(up.t());
  }
  torch::Tensor scale, codes, down, up;
};
TORCH_MODULE(Adapted);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 4; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), Adapted()));
  }
  std::vector<Adapted> layers;
};
TORCH_MODULE(Net);

void train(zero::InProcess& comm) {
  torch::set_num_threads(1);  // of each rank
  Net net;
  std::vector<zero::libtorch::Unit> const units(net->layers.begin(), net->layers.end());
  zero::libtorch::Sharded sharded{
      comm, *net, units, zero::stage::PosGP{}, zero::AdamW{.lr = 1e-2f}};
  auto const target = torch::linspace(-1., 1., width);
  double first = 0., last = 0.;
  for (int step = 0; step < 60; ++step) {
    auto x = torch::linspace(0.1, 1., 8 * width).reshape({8, width}) * (comm.rank() + 1);
    for (auto& layer : net->layers) x = sharded.forward(layer, torch::tanh(x));
    auto const loss = torch::mse_loss(x, target.expand({8, width}));
    loss.backward();
    sharded.step({.max_norm = 1.});
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  if (comm.rank() == 0) std::printf("%d ranks, loss %.3f to %.3f\n", comm.size(), first, last);
}

int main() { zero::run_ranks(4, train); }
