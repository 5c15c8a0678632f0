// A grid: tensors divided over one axis, optimizer states over the other.
//
// Four ranks are two model axes of two. Each rank of a model axis has half of the columns of a
// matrix (tensor parallelism, with the trainer's own all-reduces), and ranks of a data axis
// share the optimizer's memory. The norm that clips counts every parameter of the whole model once.
// prints: loss 0\.00.*norm of the whole model 0\.0.* on every rank.*rank 3 .data 1 of 2

#include <zero/comm/grid.hpp>
#include <zero/zero.hpp>

#include <array>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

constexpr std::size_t inputs = 3;
constexpr std::size_t columns = 4;  ///< of a rank

/// Sums over a group, in place.
void all_reduce(zero::InProcess& group, std::span<float> x) {
  zero::run(group,
            {.op = zero::Op::all_reduce, .count = x.size(), .send = x.data(), .recv = x.data()});
}

/// y = (scale * x) W, for columns [first, first + columns). Adds gradients; returns the loss of a
/// sample.
float train_on(std::array<float, inputs> const& x,
               std::size_t first,
               auto const& weights,
               auto& sums) {
  std::span<float const> const scale = weights[0];
  std::span<float const> const w = weights[1];
  float loss = 0;
  for (std::size_t c = 0; c < columns; ++c) {
    float error = 0;
    for (std::size_t k = 0; k < inputs; ++k) {
      auto const wanted = static_cast<float>(k) - 0.25f * static_cast<float>(first + c);
      error += x[k] * (scale[k] * w[k * columns + c] - wanted);
    }
    loss += error * error;
    for (std::size_t k = 0; k < inputs; ++k) {
      sums[0][k] += 2 * error * x[k] * w[k * columns + c];
      sums[1][k * columns + c] += 2 * error * x[k] * scale[k];
    }
  }
  return loss;
}

int main() {
  zero::run_ranks(4, [](zero::InProcess& world) {
    zero::Grid grid{world, 2, 2};
    std::size_t const first = columns * static_cast<std::size_t>(grid.model().rank());
    zero::ShardedOptimizer opt{grid,
                               {{.name = "scale", .shape = {inputs}},
                                {.name = "w", .shape = {inputs, columns}, .partitioned = true}},
                               zero::stage::PosG{},
                               zero::AdamW{.lr = 0.01f, .weight_decay = 0.f}};
    opt.load_parameters([](auto const&, std::size_t, std::span<float> values) {
      for (float& value : values) value = 0.5f;
    });
    float loss = 0;
    zero::StepReport report;
    for (int step = 0; step < 600; ++step) {
      auto gradients = opt.gradients(0);
      auto const turn = static_cast<float>(step % 3 + grid.data().rank());
      std::array const x{1.f, turn - 1.f, 0.5f * turn * turn - 1.f};
      loss = train_on(x, first, opt.parameters(0), gradients);
      // What a model axis has alike gets the gradients of all its ranks.
      all_reduce(grid.model(), gradients[0]);
      opt.reduce(std::move(gradients));
      report = opt.step({.max_norm = 1.0});
    }
    all_reduce(world, {&loss, 1});
    if (world.rank() != 3) return;
    std::printf(
        "loss %.4f, norm of the whole model %.4f on every rank\n", double{loss}, report.grad_norm);
    std::printf("%s\n", grid.where().c_str());
  });
}
