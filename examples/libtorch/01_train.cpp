// LibTorch: four ranks train a network of which each holds a quarter.
//
// Five lines of `train` are the library's, the rest is a LibTorch trainer. Units are called through
// `sharded`, which gathers their parameters for both passes and reduces gradients as they come.
// prints: 4 ranks, loss [01][.][0-9]+ to 0[.]0[0-9]+, 9 of 9 right
#include <zero/adapt/libtorch.hpp>

#include <torch/torch.h>

#include <cstdint>
#include <cstdio>

// Which of three words follows two others: the one that neither of them is, or the same again.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    in = register_module("in", torch::nn::Embedding(3, 8));
    hidden = register_module("hidden", torch::nn::Linear(16, 32));
    out = register_module("out", torch::nn::Linear(32, 3));
  }
  torch::nn::Embedding in{nullptr};
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor next_word(torch::Tensor const& words) { return (-words.sum(1)).remainder(3); }

void train(zero::InProcess& comm) {
  torch::set_num_threads(1);  // of each rank
  Net net;
  zero::libtorch::Sharded sharded{
      comm, *net, {net->in, net->hidden, net->out}, zero::stage::PosGP{}};
  auto const forward = [&](torch::Tensor const& words) {
    auto const x = sharded.forward(net->in, words).flatten(1);
    return sharded.forward(net->out, torch::relu(sharded.forward(net->hidden, x)));
  };

  double first = 0., last = 0.;
  for (std::int64_t step = 0; step < 30; ++step) {
    // Samples of its own on every rank.
    auto const n = torch::arange(6) * 4 + comm.rank() + step;
    auto const words = torch::stack({n.remainder(3), (n / 3).to(torch::kLong).remainder(3)}, 1);
    auto const loss = torch::nn::functional::cross_entropy(forward(words), next_word(words));
    loss.backward();
    sharded.step({.learning_rate = 0.02f, .max_norm = 1.});
    last = loss.item<double>();
    if (step == 0) first = last;
  }

  // All parameters in the module, on every rank: to evaluate it, or to save it.
  auto const whole = sharded.full_parameters();
  torch::NoGradGuard const off;
  auto const words = torch::cartesian_prod({torch::arange(3), torch::arange(3)});
  auto const right = forward(words).argmax(1).eq(next_word(words)).sum().item<int>();
  if (comm.rank() != 0) return;
  std::printf("%d ranks, loss %.3f to %.3f, %d of 9 right\n", comm.size(), first, last, right);
}

int main() { zero::run_ranks(4, train); }
