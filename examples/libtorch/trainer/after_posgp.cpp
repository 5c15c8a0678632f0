// The same trainer over zero, under Pos+g+p: each process has its share of parameters, gradients
// and states of AdamW. Units are called through `sharded`.
//
// Residual blocks between an embedding and a head learn which word follows another. Each process
// has samples of its own.
#include <zero/adapt/libtorch.hpp>
#include <zero/comm/mpi.hpp>

#include <mpi.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

constexpr int words = 24;
constexpr int width = 32;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  torch::Tensor forward(torch::Tensor const& x) { return x + down(torch::gelu(up(norm(x)))); }

  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(words, width));
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), Block()));
    }
    head = register_module("head", torch::nn::Linear(width, words));
  }
  std::vector<zero::libtorch::Unit> units() const {
    return {embedding, blocks[0], blocks[1], blocks[2], head};
  }
  template <class Sharded>
  torch::Tensor forward(Sharded& sharded, torch::Tensor const& ids) {
    auto x = sharded.forward(embedding, ids);
    for (auto& block : blocks) x = sharded.forward(block, x);
    return sharded.forward(head, x);
  }

  torch::nn::Embedding embedding{nullptr};
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

void train(int rank, int ranks) {
  torch::manual_seed(1);  // the same parameters on every process
  Net net;
  zero::Mpi<> comm(MPI_COMM_WORLD);
  zero::libtorch::Sharded opt{
      comm, *net, net->units(), zero::stage::PosGP{}, zero::AdamW{.lr = 2e-3f}};
  double sum = 0.;
  for (int step = 0; step < 60; ++step) {
    auto const ids = (torch::arange(16) * 5 + step * ranks + rank).remainder(words);
    auto const next = (ids * 7 + 3).remainder(words);
    auto const loss = torch::nn::functional::cross_entropy(net->forward(opt, ids), next);
    opt.zero_grad();
    loss.backward();
    opt.step({.max_norm = 1.});
    sum += loss.item<double>();
    if (rank == 0 && step % 10 == 9) {
      std::printf("step %d, loss %.3f\n", step + 1, sum / 10.);
      sum = 0.;
    }
  }
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  torch::set_num_threads(1);
  train(rank, ranks);
  MPI_Finalize();
}
