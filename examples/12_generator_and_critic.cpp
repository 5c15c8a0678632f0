// A generator and its critic: two optimizers, one step. The critic looks for a direction in which
// data and what is generated differ, and the generator follows it until there is none.
//
// prints: bias 3\.00 -1\.00, direction -?0\.00 -?0\.00, in 400 steps of both
#include <zero/zero.hpp>

#include <cstddef>
#include <cstdio>
#include <span>
#include <utility>

namespace {

constexpr std::size_t size = 2;
constexpr float mean_of_data[size] = {3.f, -1.f};

/// The i-th element of a sample, the same in data and what is generated but for the mean.
float noise(int rank, int step, std::size_t i) {
  return static_cast<float>((step * 7 + rank * 3 + static_cast<int>(i)) % 5 - 2) / 8.f;
}

void train(zero::InProcess& comm) {
  auto const zeros = [](zero::Tensor const&, std::size_t, std::span<float> values) {
    for (float& value : values) value = 0.f;
  };
  zero::ShardedOptimizer generator{
      comm, {{.name = "bias", .shape = {size}}}, zero::stage::PosG{}, zero::PlainSgd{.lr = 0.1f}};
  zero::ShardedOptimizer critic{comm,
                                {{.name = "direction", .shape = {size}}},
                                zero::stage::Pos{},
                                zero::PlainSgd{.lr = 0.1f}};
  generator.load_parameters(zeros);
  critic.load_parameters(zeros);

  auto const pass = [&](int step) {
    auto const bias = generator.parameters(0);
    auto const direction = critic.parameters(0);
    auto of_generator = generator.gradients(0);
    auto of_critic = critic.gradients(0);
    for (std::size_t i = 0; i < size; ++i) {
      float const real = mean_of_data[i] + noise(comm.rank(), step, i);
      float const generated = bias[0][i] + noise(comm.rank(), step, i);
      // The critic's loss: what is generated less data along its direction, and half its square.
      of_critic[0][i] += generated - real + direction[0][i];
      // The generator's: what it makes must lie where data do.
      of_generator[0][i] += -direction[0][i];
    }
    critic.reduce(std::move(of_critic));
    generator.reduce(std::move(of_generator));
  };
  for (int step = 0; step < 400; ++step) {
    pass(step);
    zero::step_together({.max_norm = 1.}, generator, critic);
  }

  auto const bias = generator.parameters(0);
  auto const direction = critic.parameters(0);
  if (comm.rank() != 0) return;
  std::printf("bias %.2f %.2f, direction %.2f %.2f, in %ld steps of both\n",
              static_cast<double>(bias[0][0]),
              static_cast<double>(bias[0][1]),
              static_cast<double>(direction[0][0]),
              static_cast<double>(direction[0][1]),
              generator.steps());
}

}  // namespace

int main() { zero::run_ranks(2, train); }
