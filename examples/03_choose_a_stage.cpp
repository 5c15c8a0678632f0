// Choosing a stage: one loop, four types. The bytes per rank fall; no bit of the result changes.
//
// Four ranks train a chain of eight layers, x <- x + w x element by element, to double its input. A
// layer is a unit: gathered when its turn comes if parameters are partitioned, a view if not.
// prints: replicated: 16.0 .*Pos: 7.0 .*Pos.g: 6.0 .*Pos.g.p: 5.0 .*bit-identical: yes

#include <zero/zero.hpp>

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

constexpr int layers = 8;
constexpr std::size_t width = 16384;

/// Trains and returns the parameters of all layers.
template <class Stage>
std::vector<zero::bf16> train(zero::InProcess& comm) {
  std::vector<zero::Tensor> model;
  for (int l = 0; l < layers; ++l) {
    model.push_back({.name = "layer " + std::to_string(l), .shape = {width}, .unit = l});
  }
  zero::ShardedOptimizer opt{
      comm, model, Stage{}, zero::Mixed<zero::bf16>{}, zero::AdamW{.lr = 0.01f}};
  opt.adopt_parameters();  // zeros

  double error = 0.;
  for (int step = 0; step < 100; ++step) {
    std::vector<float> x[layers + 1];  // the input of every layer, then the output
    for (auto& values : x) values.assign(width, 1.f + 0.1f * static_cast<float>(comm.rank()));
    for (int const l : opt.units()) {
      auto parameters = opt.parameters(l);
      auto const w = parameters[0];
      for (std::size_t i = 0; i < width; ++i) x[l + 1][i] = x[l][i] * (1.f + float{w[i]});
    }
    std::vector<float> slope = x[layers];
    for (std::size_t i = 0; i < width; ++i) slope[i] -= 2.f * x[0][i];
    error = double{slope[0]};
    for (int l = layers - 1; l >= 0; --l) {
      auto parameters = opt.parameters(l);
      auto gradients = opt.gradients(l);
      auto const w = parameters[0];
      auto const g = gradients[0];
      for (std::size_t i = 0; i < width; ++i) {
        g[i] = zero::bf16{slope[i] * x[l][i]};
        slope[i] *= 1.f + float{w[i]};
      }
      opt.reduce(std::move(gradients));
    }
    opt.step();
  }

  std::vector<zero::bf16> result;
  for (int const l : opt.units()) {
    auto parameters = opt.parameters(l);
    result.insert(result.end(), parameters[0].begin(), parameters[0].end());
  }
  if (comm.rank() == 0) {
    double const bytes = static_cast<double>(opt.held().total()) / (layers * width);
    char const* const stage = Stage::name.data();
    std::printf("%s: %.1f bytes per parameter and rank, error %.4f\n", stage, bytes, error);
  }
  return result;
}

int main() {
  bool same = true;
  zero::run_ranks(4, [&](zero::InProcess& comm) {
    auto const baseline = train<zero::stage::Replicated>(comm);
    bool const equal = train<zero::stage::Pos>(comm) == baseline &&
                       train<zero::stage::PosG>(comm) == baseline &&
                       train<zero::stage::PosGP>(comm) == baseline;
    if (comm.rank() == 0) same = equal;
  });
  std::printf("parameters are bit-identical: %s\n", same ? "yes" : "no");
  return same ? 0 : 1;
}
