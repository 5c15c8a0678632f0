// One reservation: the optimizer's memory and the trainer's own activations, without fragmentation.
//
// Two ranks train a chain of six layers, x <- x + tanh(w x), with activation checkpointing: the
// input of each layer is kept for the backward pass, which computes the rest again. What is kept
// lies at one end of the reservation, what is not at the other; the optimizer's arrays do likewise.
// prints: error 0.00.*of 2.0 MiB.*fragmentation 0.[0-9]%.*long-lived .* short-lived

#include <zero/memory.hpp>
#include <zero/zero.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

constexpr int layers = 6;
constexpr std::size_t width = 10000, vector_bytes = width * sizeof(float);

/// t = tanh(w x), which is needed for this layer only.
zero::MemoryBlock inner(zero::ContiguousMemory& memory, auto w, zero::MemoryBlock const& input) {
  auto block = memory.short_lived(vector_bytes);
  auto const t = block.as<float>();
  auto const x = input.as<float>();
  for (std::size_t i = 0; i < width; ++i) t[i] = std::tanh(w[i] * x[i]);
  return block;
}

void train(zero::InProcess& comm) {
  std::vector<zero::Tensor> model;
  for (int l = 0; l < layers; ++l) {
    model.push_back({.name = "layer " + std::to_string(l), .shape = {width}, .unit = l});
  }
  zero::ContiguousMemory memory{2 * zero::MiB};  // of this rank; statistics say what is enough
  zero::ShardedOptimizer opt{
      comm, model, zero::stage::PosGP{}, zero::AdamW{.lr = 0.01f}, zero::Owned{memory}};
  opt.adopt_parameters();  // zeros

  double error = 0.;
  for (int step = 0; step < 100; ++step) {
    zero::MemoryBlock x[layers + 1];  // the input of each layer, and the output
    x[0] = memory.long_lived(vector_bytes);
    for (float& value : x[0].as<float>()) value = 1.f + 0.1f * static_cast<float>(comm.rank());
    for (int const l : opt.units()) {
      auto parameters = opt.parameters(l);
      auto const t = inner(memory, parameters[0], x[l]);
      x[l + 1] = memory.long_lived(vector_bytes);
      for (std::size_t i = 0; i < width; ++i) {
        x[l + 1].as<float>()[i] = x[l].as<float>()[i] + t.as<float>()[i];
      }
    }
    auto slopes =
        memory.short_lived(vector_bytes);  // the gradient of the error by this layer's output
    for (std::size_t i = 0; i < width; ++i) {
      slopes.as<float>()[i] = x[layers].as<float>()[i] - 2.f * x[0].as<float>()[i];
    }
    error = double{slopes.as<float>()[0]};
    for (int const l : opt.units_backward()) {
      auto parameters = opt.parameters(l);
      auto gradients = opt.gradients(l);
      auto const t = inner(memory, parameters[0], x[l]);
      for (std::size_t i = 0; i < width; ++i) {
        float& slope = slopes.as<float>()[i];
        float const through = slope * (1.f - t.as<float>()[i] * t.as<float>()[i]);
        gradients[0][i] = through * x[l].as<float>()[i];
        slope += through * parameters[0][i];
      }
      opt.reduce(std::move(gradients));
      x[l + 1] = {};  // the next layer, counted backwards, has no use for it
    }
    opt.step();
  }
  if (comm.rank() != 0) return;
  std::printf("error %.4f\n%s", std::abs(error), to_string(memory.statistics()).c_str());
}

int main() { zero::run_ranks(2, train); }
