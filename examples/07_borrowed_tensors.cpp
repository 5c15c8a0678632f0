// Borrowed memory: a list of separate tensors, whose gradients lie elsewhere in every step.
//
// This is the shape of a trainer built on an autograd library: each parameter is an allocation of
// its own, and every backward pass returns new gradients. Scattered tensors travel through one
// staging buffer, whose size follows from the bucket and not from the model.
// prints: y = 0.50 x0 -1.50 x1 .2.00.*Pos.g fp32 SGD N=2: .*staging 8.0 KiB

#include <zero/zero.hpp>

#include <array>
#include <cstdio>
#include <memory>
#include <span>
#include <utility>
#include <vector>

/// Stands in for an autograd library: freshly allocated gradients of the mean squared error.
struct Gradients {
  std::unique_ptr<float[]> weight = std::make_unique<float[]>(2);
  std::unique_ptr<float[]> bias = std::make_unique<float[]>(1);
};

Gradients backward(float const* weight, float const* bias, int rank) {
  Gradients result;
  constexpr int samples = 40;
  for (int i = 0; i < samples; ++i) {
    float const x0 = static_cast<float>(i % 7) / 7.f - 0.5f;
    float const x1 = static_cast<float>((i + rank) % 5) / 5.f - 0.5f;
    float const y = 0.5f * x0 - 1.5f * x1 + 2.f;
    float const slope = 2.f * (weight[0] * x0 + weight[1] * x1 + bias[0] - y) / samples;
    result.weight[0] += slope * x0;
    result.weight[1] += slope * x1;
    result.bias[0] += slope;
  }
  return result;
}

int main() {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    auto const weight = std::make_unique<float[]>(2);
    auto const bias = std::make_unique<float[]>(1);
    std::array const parameters{std::span(weight.get(), 2), std::span(bias.get(), 1)};

    zero::ShardedOptimizer opt{comm,
                               {{.name = "weight", .shape = {2}}, {.name = "bias", .shape = {1}}},
                               zero::stage::PosG{},
                               zero::Borrowed<>{},
                               zero::Sgd{.lr = 0.1f}};
    for (int step = 0; step < 400; ++step) {
      Gradients const fresh = backward(weight.get(), bias.get(), comm.rank());
      std::array const gradients{std::span(fresh.weight.get(), 2), std::span(fresh.bias.get(), 1)};
      opt.bind(parameters, gradients);
      if (step == 0) opt.adopt_parameters();
      opt.step();
    }
    if (comm.rank() != 0) return;
    std::printf("y = %.2f x0 %+.2f x1", double{weight[0]}, double{weight[1]});
    std::printf(" %+.2f\n%s\n", double{bias[0]}, zero::to_line(opt.plan()).c_str());
  });
}
