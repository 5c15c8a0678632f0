// The plan: what every rank will hold and send, before anything is allocated.
//
// Describes a model of 7.5 billion parameters and asks what each stage costs on each of 64 ranks
// with mixed-precision Adam. The model states are those of the paper's Figure 1; pools and buckets
// are what a program needs besides. Then it prints the whole plan of one of them.
// prints: 120.0 GB.* 31.4 GB.* 16.6 GB.* 1.9 GB.*held per rank.*2Ψ/N.*sent per rank and step

#include <zero/zero.hpp>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

template <class Stage>
zero::Plan plan_for(std::vector<zero::Tensor> const& model) {
  using Optimizer =
      zero::ShardedOptimizer<zero::InProcess, Stage, zero::Mixed<zero::bf16>, zero::AdamW>;
  return Optimizer::plan({.world_size = 64, .micro_steps = 1}, model, zero::Bucket{25 * zero::MiB});
}

void print_summary(zero::Plan const& plan) {
  using zero::Role;
  auto const gigabytes = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e9; };
  std::uint64_t const states = plan.memory[Role::parameters] + plan.memory[Role::gradients] +
                               plan.memory[Role::master] + plan.memory[Role::state];
  std::printf("%-10s: model states %5.1f GB, pools and buckets %.1f GB, sends %.1f GB a step\n",
              plan.names.stage.c_str(),
              gigabytes(states),
              gigabytes(plan.memory.total() - states),
              gigabytes(plan.sent.total()));
}

int main() {
  std::vector<zero::Tensor> model;
  for (int layer = 0; layer < 75; ++layer) {
    model.push_back(
        {.name = "h" + std::to_string(layer), .shape = {10'000, 10'000}, .unit = layer});
  }
  print_summary(plan_for<zero::stage::Replicated>(model));
  print_summary(plan_for<zero::stage::Pos>(model));
  print_summary(plan_for<zero::stage::PosG>(model));
  zero::Plan const plan = plan_for<zero::stage::PosGP>(model);
  print_summary(plan);
  std::printf("\n%s", zero::to_string(plan).c_str());
}
