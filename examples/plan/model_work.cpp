/// What the example GPT computes in a step, by the functions that it computes it with.
#include "layers.hpp"
#include "measure.hpp"
#include "model.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace plan {

namespace {

using gpt::Buffer;
using gpt::Index;
using Body = std::function<void()>;
using Floats = Buffer<float>;

Floats from(std::pmr::memory_resource& memory, std::size_t count) {
  return Floats(count, gpt::AlignedAllocator<float>(&memory));
}
/// Memory of its own, that holds one value.
Floats filled(std::size_t count, float value) {
  Floats buffer(count);
  std::ranges::fill(buffer, value);
  return buffer;
}
Index index(std::size_t size) { return static_cast<Index>(size); }

/// Operands that a layer reads, and that it writes.
struct Operands {
  std::vector<Floats> in;
  std::vector<Floats> out;
};
/// @param reads, writes  elements of each
template <class Run>
Body layer(Place& place,
           std::vector<std::size_t> const& reads,
           std::vector<std::size_t> const& writes,
           Run const& run) {
  std::size_t bytes = 0;
  for (auto const* const list : {&reads, &writes}) {
    for (std::size_t const count : *list) bytes += count * sizeof(float);
  }
  auto const make = [&] {
    Operands set;
    for (std::size_t const count : reads) set.in.push_back(from(place.in, count));
    for (std::size_t const count : writes) set.out.push_back(from(place.out, count));
    return set;
  };
  return walk(model_window, bytes, make, run);
}

std::vector<double> const tokens{16., 64., 256.};
std::vector<double> const widths{32., 128., 512.};
std::vector<double> const wide{64., 128., 256., 512., 1024.};
std::vector<double> const counts{1024., 16384., 262144., 4194304.};

Body linear_forward(Place& place, Sizes of) {
  std::size_t const t = of[0], n = of[1], k = of[2];
  return layer(place, {t * k, n * k, n}, {t * n}, [t](Operands& o) {
    gpt::linear_forward(index(t), o.in[0], o.in[1], o.in[2], o.out[0]);
  });
}
Body linear_backward(Place& place, Sizes of) {
  std::size_t const t = of[0], n = of[1], k = of[2];
  return layer(place, {t * n, t * k, n * k}, {t * k, n * k, n}, [t](Operands& o) {
    gpt::linear_backward(index(t), o.in[0], o.in[1], o.in[2], o.out[0], o.out[1], o.out[2]);
  });
}

/// Of as many pieces as sequences have heads together: four heads, as many sequences as it takes.
gpt::AttentionShape shape_of(Sizes of) { return {index(of[0] / 4), index(of[1]), 4, index(of[2])}; }
Body attention_forward(Place& place, Sizes of) {
  std::size_t const rows = of[0] * of[1];
  return layer(
      place, {3 * rows * of[2]}, {rows * of[1], rows * of[2]}, [shape = shape_of(of)](Operands& o) {
        gpt::attention_forward(shape, o.in[0], o.out[0], o.out[1]);
      });
}
Body attention_backward(Place& place, Sizes of) {
  std::size_t const rows = of[0] * of[1];
  return layer(place,
               {rows * of[2], 3 * rows * of[2], rows * of[1]},
               {of[1] * of[1], 3 * rows * of[2]},
               [shape = shape_of(of)](Operands& o) {
                 gpt::attention_backward(shape, o.in[0], o.in[1], o.in[2], o.out[0], o.out[1]);
               });
}

Body norm_forward(Place& place, Sizes of) {
  std::size_t const t = of[0], h = of[1];
  return layer(place, {t * h, h, h}, {t, t, t * h}, [t](Operands& o) {
    gpt::LayerNorm<float> norm{std::move(o.out[0]), std::move(o.out[1]), std::move(o.out[2])};
    gpt::layernorm_forward(index(t), o.in[0], o.in[1], o.in[2], norm);
    o.out[0] = std::move(norm.mean), o.out[1] = std::move(norm.rdev),
    o.out[2] = std::move(norm.out);
  });
}
Body norm_backward(Place& place, Sizes of) {
  std::size_t const t = of[0], h = of[1];
  // With gains of 1 the gradient, which it works in, stays what it is.
  return layer(
      place, {t * h, t * h, t, t}, {t * h, h, h}, [t, gain = filled(h, 1.F)](Operands& o) mutable {
        gpt::LayerNorm<float> norm{std::move(o.in[2]), std::move(o.in[3]), {}};
        gpt::layernorm_backward(
            index(t), o.in[0], o.in[1], norm, gain, o.out[0], o.out[1], o.out[2]);
        o.in[2] = std::move(norm.mean), o.in[3] = std::move(norm.rdev);
      });
}

Body gelu_forward(Place& place, Sizes of) {
  std::size_t const n = of[0];
  return layer(
      place, {n}, {n}, [n](Operands& o) { gpt::gelu_forward(index(n), o.in[0], o.out[0]); });
}
Body gelu_backward(Place& place, Sizes of) {
  std::size_t const n = of[0];
  // Where it is steepest it multiplies by 1; else gradients would shrink until they are slow.
  std::size_t const sets = std::max<std::size_t>(1, model_window / (3 * n * sizeof(float)));
  auto const x = std::make_shared<std::vector<Floats>>();
  for (std::size_t i = 0; i < std::min(sets, most_sets); ++i) x->push_back(filled(n, 10.F));
  return layer(place, {n}, {n}, [n, x, at = std::size_t{0}](Operands& o) mutable {
    gpt::gelu_backward(index(n), (*x)[at], o.out[0], o.in[0]);
    at = (at + 1) % x->size();
  });
}
Body sum(Place& place, Sizes of) {
  std::size_t const n = of[0];
  return layer(place, {n}, {n}, [n](Operands& o) {
    gpt::matrix(o.out[0], 1, index(n)) += gpt::matrix(o.in[0], 1, index(n));
  });
}

/// A model without blocks: embedding and head, forward and backward, with the loss.
Body ends(Place& /*place*/, Sizes of) {
  std::size_t const length = std::min<std::size_t>(of[0], 64);
  gpt::Config const config{.layers = 0,
                           .heads = 1,
                           .channels = static_cast<int>(of[1]),
                           .context = static_cast<int>(length)};
  struct Model {
    gpt::Gpt<float> gpt;
    std::vector<std::vector<Floats>> weights, gradients;
    std::vector<std::uint8_t> bytes;
  };
  auto const model = std::make_shared<Model>(
      Model{gpt::Gpt<float>(config, static_cast<int>(of[0] / length)), {{}, {}}, {{}, {}}, {}});
  for (gpt::TensorInfo const& tensor : gpt::tensors(config)) {
    auto const unit = static_cast<std::size_t>(tensor.unit);
    model->weights[unit].push_back(filled(tensor.numel(), 0.02F));
    model->gradients[unit].push_back(filled(tensor.numel(), 0.F));
  }
  for (std::size_t i = 0; i < of[0]; ++i) {
    model->bytes.push_back(static_cast<std::uint8_t>(i * 2654435761U >> 13U));
  }
  return [model] {
    auto& [gpt, weights, gradients, bytes] = *model;
    gpt.set_batch(bytes, bytes);
    for (int const unit : {0, 1}) gpt.forward(unit, weights[static_cast<std::size_t>(unit)]);
    gpt.begin_backward();
    for (int const unit : {1, 0}) {
      auto const u = static_cast<std::size_t>(unit);
      std::vector<std::span<float>> const sums(gradients[u].begin(), gradients[u].end());
      gpt.backward(unit, weights[u], sums);
    }
  };
}

/// Between a unit's tensors and the model's copies of them, both ways: as `gpt::Gpt` does it.
template <class T>
Body unpack(Place& place, Sizes of) {
  std::size_t const n = of[0];
  return layer(place, {n}, {n}, [n](Operands& o) {
    auto const* const source = reinterpret_cast<T const*>(o.in[0].data());
    float* target = o.out[0].data();
    for (auto const& value : std::span(source, n)) *target++ = static_cast<float>(value);
  });
}
template <class T>
Body accumulate(Place& place, Sizes of) {
  std::size_t const n = of[0];
  return layer(place, {n}, {n}, [n](Operands& o) {
    float const* source = o.in[0].data();
    for (auto& value : std::span(reinterpret_cast<T*>(o.out[0].data()), n)) {
      value = static_cast<T>(static_cast<float>(value) + *source++);
    }
  });
}

}  // namespace

std::vector<Work> model_work(std::string const& precision) {
  std::vector<double> const pieces{4., 16., 64.};
  std::vector<double> const lengths{16., 64., 256.};
  std::vector<double> const head_sizes{16., 32., 64.};
  std::vector<Work> all{{"linear forward", {tokens, wide, wide}, linear_forward},
                        {"linear backward", {tokens, wide, wide}, linear_backward},
                        {"attention forward", {pieces, lengths, head_sizes}, attention_forward},
                        {"attention backward", {pieces, lengths, head_sizes}, attention_backward},
                        {"layer norm forward", {tokens, widths}, norm_forward},
                        {"layer norm backward", {tokens, widths}, norm_backward},
                        {"gelu forward", {counts}, gelu_forward},
                        {"gelu backward", {counts}, gelu_backward},
                        {"sum", {counts}, sum},
                        {"embedding and head", {tokens, widths}, ends}};
  auto const add = [&](auto type) {
    using T = decltype(type);
    all.push_back({"unpack", {counts}, unpack<T>});
    all.push_back({"accumulate", {counts}, accumulate<T>});
  };
  if (precision == "fp32")
    add(float{});
  else if (precision == "bf16")
    add(zero::bf16{});
  else
    add(zero::fp16{});
  return all;
}

}  // namespace plan
