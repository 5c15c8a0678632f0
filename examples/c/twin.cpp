// The twin of 01_train.c in C++: a test compares what they print.
#include <zero/zero.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace {

constexpr int hidden = 16;
constexpr int samples = 32;

template <class Stage>
void train(zero::InProcess& comm, int stage) {
  std::vector<zero::Tensor> const model{{.name = "hidden.w", .shape = {hidden}, .unit = 0},
                                        {.name = "hidden.b", .shape = {hidden}, .unit = 0},
                                        {.name = "output.w", .shape = {hidden}, .unit = 1},
                                        {.name = "output.b", .shape = {1}, .unit = 1}};
  zero::ShardedOptimizer opt{comm, model, Stage{}, zero::AdamW{.lr = 0.02f}};
  opt.load_parameters([&](zero::Tensor const& tensor, std::size_t first, std::span<float> values) {
    auto const t = &tensor - opt.tensors().data();
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto const place = static_cast<std::ptrdiff_t>(first + i) * 7 % 11;
      values[i] = static_cast<float>(place + t) / 8 - 0.75f;
    }
  });

  double loss = 0.;
  for (int step = 0; step < 300; ++step) {
    {
      auto const w1 = opt.parameters(0), w2 = opt.parameters(1);
      auto g2 = opt.gradients(1), g1 = opt.gradients(0);
      loss = 0.;
      for (int s = 0; s < samples; ++s) {
        float const x = static_cast<float>(2 * s + comm.rank()) / samples - 1;
        float error = w2[1][0] - x * x;
        float out[hidden];
        for (std::size_t k = 0; k < hidden; ++k) {
          out[k] = w1[0][k] * x + w1[1][k] > 0 ? w1[0][k] * x + w1[1][k] : 0;
          error += w2[0][k] * out[k];
        }
        loss += double{error * error} / samples;
        for (std::size_t k = 0; k < hidden; ++k) {
          g2[0][k] += 2 * error / samples * out[k];
          g1[0][k] += out[k] > 0 ? 2 * error / samples * w2[0][k] * x : 0;
          g1[1][k] += out[k] > 0 ? 2 * error / samples * w2[0][k] : 0;
        }
        g2[1][0] += 2 * error / samples;
      }
      opt.reduce(std::move(g2));
      opt.reduce(std::move(g1));
    }
    opt.step();
  }

  auto const all = opt.full_parameters();
  std::uint32_t bits = 0, one = 0;
  for (std::size_t t = 0; t < all.size(); ++t) {
    for (float const value : all[t]) {
      std::memcpy(&one, &value, sizeof(one));
      bits = bits * 31 + one;
    }
  }
  if (comm.rank() != 0) return;
  std::printf("stage %d: loss %.4f, parameters %08x\n", stage, loss, bits);
}

}  // namespace

int main() {
  zero::run_ranks(2, [](zero::InProcess& comm) { train<zero::stage::Replicated>(comm, 0); });
  zero::run_ranks(2, [](zero::InProcess& comm) { train<zero::stage::Pos>(comm, 1); });
  zero::run_ranks(2, [](zero::InProcess& comm) { train<zero::stage::PosG>(comm, 2); });
  zero::run_ranks(2, [](zero::InProcess& comm) { train<zero::stage::PosGP>(comm, 3); });
}
