// A LibTorch trainer on processes that averages gradients with MPI_Allreduce, and has AdamW of
// LibTorch's own on every process.
//
// Residual blocks between an embedding and a head learn which word follows another. Each process
// has samples of its own.
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
  torch::Tensor forward(torch::Tensor const& ids) {
    auto x = embedding(ids);
    for (auto& block : blocks) x = block(x);
    return head(x);
  }

  torch::nn::Embedding embedding{nullptr};
  std::vector<Block> blocks;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

// The mean over all processes.
void average_gradients(torch::nn::Module& net, int ranks) {
  for (auto const& parameter : net.parameters()) {
    if (!parameter.grad().defined()) continue;
    MPI_Allreduce(MPI_IN_PLACE,
                  parameter.grad().data_ptr(),
                  static_cast<int>(parameter.numel()),
                  MPI_FLOAT,
                  MPI_SUM,
                  MPI_COMM_WORLD);
    parameter.grad().div_(ranks);
  }
}

void train(int rank, int ranks) {
  torch::manual_seed(1);  // the same parameters on every process
  Net net;
  torch::optim::AdamW opt(net->parameters(), torch::optim::AdamWOptions(2e-3));
  double sum = 0.;
  for (int step = 0; step < 60; ++step) {
    auto const ids = (torch::arange(16) * 5 + step * ranks + rank).remainder(words);
    auto const next = (ids * 7 + 3).remainder(words);
    auto const loss = torch::nn::functional::cross_entropy(net->forward(ids), next);
    opt.zero_grad();
    loss.backward();
    average_gradients(*net, ranks);
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.);
    opt.step();
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
