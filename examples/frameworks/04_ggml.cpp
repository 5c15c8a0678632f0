// A graph: ggml's, cut where its nodes go from one unit's parameters to another's.
//
// The library owns weights and gradients, to which ggml's tensors point while guards have them. One
// matrix is F16, one is Q8_0 and frozen, with adapters beside it, and one is F32.
// prints: 4 stages, 1 result, loss 0.0

#include "ggml_units.hpp"

#include <ggml-cpp.h>
#include <ggml-cpu.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

constexpr std::size_t width = 32, samples = 32, thin = 4;

/// 16-bit parameters, whose gradients are float in ggml, beside those in fp32.
using Types = zero::ByTensor<zero::MixedFloatGradients<zero::fp16>, zero::Fp32>;

/// How matrices begin.
float initial(std::size_t element) { return element % (width + 1) == 0 ? 0.5f : 0.02f; }

/// The frozen matrix, as a file would have it.
std::vector<std::byte> quantised(ggml_tensor const* matrix) {
  std::vector<float> values(width * width);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = initial(i);
  std::vector<std::byte> blocks(ggml_nbytes(matrix));
  ggml_quantize_chunk(matrix->type, values.data(), blocks.data(), 0, width, width, nullptr);
  return blocks;
}

/// Linear layers learn to give back what they are given; returns all trained parameters.
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
  weights.emplace_back(ctx, 0, GGML_TYPE_F16, width, width);
  weights.emplace_back(ctx, 1, GGML_TYPE_Q8_0, width, width);
  weights.emplace_back(ctx, 1, GGML_TYPE_F32, width, thin);
  weights.emplace_back(ctx, 1, GGML_TYPE_F32, thin, width);
  weights.emplace_back(ctx, 2, GGML_TYPE_F32, width, width);
  std::vector<zero::Tensor> model;
  for (char const* const name : {"first", "base", "a", "b", "last"}) {
    model.push_back(weights[model.size()].describe(name));
  }
  auto const times = [&](std::size_t weight, ggml_tensor* x) {
    return ggml_mul_mat(ctx, weights[weight].parameter, x);
  };
  values = times(0, values);
  values = ggml_add(ctx, times(1, values), times(3, times(2, values)));
  values = times(4, values);
  ggml_tensor* const squares = ggml_sqr(ctx, ggml_sub(ctx, values, input));
  ggml_tensor* const mean = ggml_scale(ctx, ggml_sum(ctx, squares), 1.f / samples);
  std::vector<Piece> const pieces = pieces_of(ctx, mean, weights);

  zero::ShardedOptimizer opt{comm, model, Stage{}, Types{}, zero::AdamW{.lr = 0.01}};
  opt.load_parameters([](zero::Tensor const& tensor, std::size_t first, std::span<float> out) {
    for (float& value : out) value = tensor.name == "b" ? 0.f : initial(first++);
  });
  auto const base = quantised(weights[1].parameter);
  opt.load_bytes([&](zero::Tensor const&, std::size_t first, std::span<std::byte> out) {
    std::copy_n(base.data() + first, out.size(), out.data());
  });
  while (opt.steps() < 300) {
    for (Piece const& piece : pieces) {
      auto const w = opt.parameters(piece.unit);
      point_parameters(weights, w);
      if (!piece.backward) {
        compute(backend.get(), piece);
        continue;
      }
      auto g = opt.gradients(piece.unit);
      point_gradients(weights, g);
      compute(backend.get(), piece);
      opt.reduce(std::move(g));
    }
    opt.step();
  }
  loss = ggml_get_data_f32(mean)[0];
  auto const all = opt.full_parameters();
  std::vector<float> result(all.template as<zero::fp16>("first").begin(),
                            all.template as<zero::fp16>("first").end());
  for (char const* const name : {"a", "b", "last"}) {
    auto const more = all.template as<float>(name);
    result.insert(result.end(), more.begin(), more.end());
  }
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
