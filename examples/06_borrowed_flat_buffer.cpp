// Borrowed memory: a trainer that keeps all parameters in one flat buffer, and all gradients in
// another, as before; and that needs three calls only.
//
// Fits y = sin(x) with a cubic on two ranks. The library holds its share of gradients and states
// and a staging bucket; parameters and full gradients stay where the trainer has them. Then it
// prints what a rank holds for a larger model, where the gradients may be written and where not.
// prints: Pos fp32 .* holds .*state 4.0 KiB, .*loss fell from 0.[1-9][0-9]+ to 0.000.*held

#include <zero/zero.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

/// Knows nothing of the library.
struct Trainer {
  std::vector<float> parameters = std::vector<float>(4);  // linear [1], bend [2], offset [1]
  std::vector<float> gradients = std::vector<float>(4);

  /// One pass over this rank's samples; returns their mean squared error.
  double forward_backward(int rank) {
    constexpr int samples = 50;
    std::fill(gradients.begin(), gradients.end(), 0.f);
    double loss = 0.;
    for (int i = 0; i < samples; ++i) {
      float const x = static_cast<float>(2 * i + rank) / samples - 1.f;
      std::array const features{x, x * x, x * x * x, 1.f};
      float error = -std::sin(x);
      for (std::size_t k = 0; k < 4; ++k) error += parameters[k] * features[k];
      for (std::size_t k = 0; k < 4; ++k) gradients[k] += 2.f * error * features[k] / samples;
      loss += double{error * error} / samples;
    }
    return loss;
  }
};

template <class Memory>
void print_held(char const* memory) {
  using Optimizer = zero::ShardedOptimizer<zero::InProcess, zero::stage::Pos, Memory>;
  auto const mebibytes = [](int ranks) {
    zero::Plan const plan =
        Optimizer::plan({.world_size = ranks}, {{.name = "all", .shape = {850'688}}});
    return static_cast<double>(plan.memory.total()) / static_cast<double>(zero::MiB);
  };
  std::printf("%-15s  %4.1f MiB  %4.1f MiB\n", memory, mebibytes(2), mebibytes(4));
}

int main() {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    Trainer trainer;
    std::vector<zero::Tensor> const model = {
        // in the order in which they lie in the buffers
        {.name = "linear", .shape = {1}},
        {.name = "bend", .shape = {2}},
        {.name = "offset", .shape = {1}},
    };
    zero::ShardedOptimizer opt{
        comm, model, zero::stage::Pos{}, zero::Borrowed<>{}, zero::AdamW{.lr = 0.02f}};
    opt.bind(trainer.parameters, trainer.gradients);
    opt.adopt_parameters();  // training starts from the values that lie there

    double first_loss = 0., loss = 0.;
    for (int step = 0; step < 500; ++step) {
      loss = trainer.forward_backward(comm.rank());
      opt.reduce_all();
      double const norm = opt.grad_norm();          // the same bits on both ranks
      opt.step(0.02f, norm > 1. ? 1. / norm : 1.);  // learning rate, factor of the gradient
      if (step == 0) first_loss = loss;
    }
    if (comm.rank() != 0) return;
    std::printf("%s\n", zero::to_line(opt.plan()).c_str());
    std::printf("loss fell from %.4f to %.4f\n", first_loss, loss);
  });

  std::printf("850,688 held      2 ranks   4 ranks\n");
  print_held<zero::Borrowed<>>("Borrowed");
  print_held<zero::BorrowedInPlace<>>("BorrowedInPlace");
}
