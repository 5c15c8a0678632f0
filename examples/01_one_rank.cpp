// One rank: the whole training loop, before any partner joins.
//
// Fits the coefficients of y = 2 - 3x + x^2 to samples of that curve, by least squares.
// prints: y = 2.00 -3.00 x [+]1.00 x.2, loss fell from [1-9].* to 0.0000

#include <zero/zero.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>
#include <vector>

/// Forward and backward pass: adds the gradient of the mean squared error, returns the error.
double forward_backward(auto& opt) {
  constexpr int samples = 64;
  auto parameters = opt.parameters(0);  // of unit 0, for as long as this guard lives
  auto gradients = opt.gradients(0);    // zero when asked for
  auto const c = parameters["coefficients"];
  auto const g = gradients["coefficients"];
  double loss = 0.;
  for (int i = 0; i < samples; ++i) {
    float const x = -1.f + 2.f * static_cast<float>(i) / (samples - 1);
    float const error = (c[0] + c[1] * x + c[2] * x * x) - (2.f - 3.f * x + x * x);
    float const slope = 2.f * error / samples;
    g[0] += slope;
    g[1] += slope * x;
    g[2] += slope * x * x;
    loss += double{error * error} / samples;
  }
  opt.reduce(std::move(gradients));  // complete: they may travel
  return loss;
}

int main() {
  // The model is described by plain data. Its one tensor belongs to unit 0, its one layer.
  std::vector<zero::Tensor> const model = {{.name = "coefficients", .shape = {3}}};

  zero::Self comm;  // one rank, no thread, no network
  zero::ShardedOptimizer opt{comm, model, zero::AdamW{.lr = 0.05f, .weight_decay = 0.f}};
  opt.load_parameters([](zero::Tensor const&, std::size_t /*first*/, std::span<float> values) {
    std::ranges::fill(values, 0.5f);
  });

  double first_loss = 0., loss = 0.;
  while (opt.steps() < 500) {
    loss = forward_backward(opt);
    if (opt.steps() == 0) first_loss = loss;
    opt.step();
  }

  auto parameters = opt.parameters(0);
  auto const c = parameters["coefficients"];
  std::printf("y = %.2f %+.2f x %+.2f x^2", double{c[0]}, double{c[1]}, double{c[2]});
  std::printf(", loss fell from %.4f to %.4f\n", first_loss, loss);
}
