// A graph: ggml's, cut where its nodes go from one unit's parameters to another's.
//
// The library owns weights and gradients, to which ggml's tensors point while guards have them.
// prints: 4 stages, 1 result, loss 0.0

#include "ggml_units.hpp"
#include <zero/zero.hpp>

#include <ggml-cpp.h>
#include <ggml-cpu.h>

#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

constexpr std::size_t width = 24, samples = 32;

/// Linear layers learn to give back what they are given; returns all parameters.
template <class Stage>
std::vector<float> train(zero::InProcess& comm, float& loss) {
  ggml_context_ptr const context(ggml_init({std::size_t{1} << 22, nullptr, false}));
  ggml_backend_ptr const backend(ggml_backend_cpu_init());
  ggml_backend_cpu_set_n_threads(backend.get(), 1);  // idle ones spin, and ranks need processors
  ggml_context* const ctx = context.get();
  ggml_tensor* const input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, width, samples);
  for (std::size_t i = 0; i < width * samples; ++i) {
    auto const seed = (i * 7 + static_cast<std::size_t>(comm.rank())) * 37;
    ggml_get_data_f32(input)[i] = static_cast<float>(seed % 101) / 50.f - 1.f;
  }
  ggml_tensor* values = input;
  std::vector<Weight> weights;
  std::vector<zero::Tensor> model;
  for (int unit = 0; unit < 3; ++unit) {
    weights.emplace_back(ctx, unit, width, width);
    model.push_back({.name = "w" + std::to_string(unit), .shape = {width, width}, .unit = unit});
    values = ggml_mul_mat(ctx, weights.back().parameter, values);
  }
  ggml_tensor* const squares = ggml_sqr(ctx, ggml_sub(ctx, values, input));
  ggml_tensor* const mean = ggml_scale(ctx, ggml_sum(ctx, squares), 1.f / samples);
  std::vector<Piece> const pieces = pieces_of(ctx, mean, weights);

  zero::ShardedOptimizer opt{comm, model, Stage{}, zero::AdamW{.lr = 0.01}};
  opt.load_parameters([](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    for (float& value : out) value = first++ % (width + 1) == 0 && tensor.unit != 1 ? 0.5f : 0.1f;
  });
  while (opt.steps() < 300) {
    for (Piece const& piece : pieces) {
      auto const w = opt.parameters(piece.unit);
      point(weights, &Weight::parameter, w);
      if (!piece.backward) {
        compute(backend.get(), piece);
        continue;
      }
      auto g = opt.gradients(piece.unit);
      point(weights, &Weight::gradient, g);
      compute(backend.get(), piece);
      opt.reduce(std::move(g));
    }
    opt.step();
  }
  loss = ggml_get_data_f32(mean)[0];
  std::vector<float> result;
  auto const all = opt.full_parameters();
  for (std::size_t t = 0; t < 3; ++t) result.insert(result.end(), all[t].begin(), all[t].end());
  return result;
}

int main() {
  zero::run_ranks(2, [](zero::InProcess& comm) {
    float loss = 0.f;
    auto const w = train<zero::stage::PosGP>(comm, loss);
    using namespace zero::stage;
    bool const same = w == train<Replicated>(comm, loss) && w == train<Pos>(comm, loss) &&
                      w == train<PosG>(comm, loss);
    if (comm.rank() == 0)
      std::printf("4 stages, %d result, loss %.4f\n", same ? 1 : 4, double{loss});
  });
}
