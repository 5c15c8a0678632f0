#include <zero/adapt/libtorch.hpp>
#include <zero/zero.hpp>

#include <torch/torch.h>

int main() {
  torch::set_num_threads(1);
  zero::Self comm;
  torch::nn::Linear layer(3, 1);
  zero::libtorch::Sharded sharded{
      comm, *layer, {layer}, zero::stage::PosGP{}, zero::PlainSgd{.lr = 0.5f}};
  sharded.forward(layer, torch::ones({1, 3})).sum().backward();
  return sharded.step().step == 1 ? 0 : 1;
}
