/// @file
/// A GPT by its sizes, as tensors: what is planned without a model being there.
#pragma once

#include "zero/base/bytes.hpp"
#include "zero/base/dtype.hpp"
#include "zero/base/error.hpp"
#include "zero/layout/tensor.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plan {

using namespace zero;

/// A decoder by its sizes: GPT-2's kind unless more is said, and Llama's kind. With L layers, width
/// h, V words and sequences of s tokens, GPT-2's has L(12h² + 13h) + (V + s + 2)h parameters; the
/// embedding is the output head too.
struct Transformer {
  int layers = 48;                ///< blocks
  std::size_t hidden = 1600;      ///< width of the residual stream
  std::size_t heads = 16;         ///< of queries
  std::size_t vocab = 51200;      ///< words; GPT-2's 50257, rounded up
  std::size_t sequence = 1024;    ///< longest sequence, and what activations are planned for
  std::size_t kv_heads = 0;       ///< of keys and values, each shared by queries; 0: `heads`
  std::size_t head_width = 0;     ///< of one head; 0: hidden / heads
  std::size_t inner = 0;          ///< width of the MLP; 0: 4 hidden
  bool gated = false;             ///< does a second product of that width gate the MLP?
  bool biases = true;             ///< have products and norms biases?
  bool learned_positions = true;  ///< is there a vector for each position?
  std::size_t positions = 0;      ///< of them; 0: `sequence`
  bool tied = true;               ///< is the head the embedding?
  bool dropout = true;            ///< are masks kept for the backward pass?
  bool wide_vectors = false;      ///< are norms and biases of 32 bits?
  /// Rank of adapters (LoRA) beside the matrices of blocks: they alone are trained. 0: all is.
  std::size_t adapters = 0;
  /// Of an element of these matrices, its part of scales included, in a code that the library does
  /// not know; 0: they are as all others.
  double base_bits = 0.;
  friend bool operator==(Transformer const&, Transformer const&) = default;

  /// Of all queries.
  [[nodiscard]] std::size_t query_width() const {
    return checked_mul(heads, head_width > 0 ? head_width : hidden / heads);
  }
  /// Of all keys, and of all values.
  [[nodiscard]] std::size_t key_width() const {
    return kv_heads > 0 ? query_width() / heads * kv_heads : query_width();
  }
  [[nodiscard]] std::size_t inner_width() const {
    return inner > 0 ? inner : checked_mul(4, hidden);
  }
};

namespace detail {

inline void require_sizes(Transformer const& model, int model_parallel) {
  if (model.layers < 1 || model.hidden < 1 || model.heads < 1 || model.vocab < 1 ||
      model.sequence < 1) {
    fail(ErrorKind::invalid_argument,
         "layers, hidden, heads, vocab and sequence have to be at least 1");
  }
  if (model.head_width == 0 && model.hidden % model.heads != 0) {
    fail(ErrorKind::invalid_argument,
         {model.heads, " heads cannot share a width of ", model.hidden, " evenly"});
  }
  if (model.kv_heads > 0 && model.heads % model.kv_heads != 0) {
    fail(ErrorKind::invalid_argument,
         {model.heads, " heads cannot share ", model.kv_heads, " of keys and values evenly"});
  }
  auto const divides = [&](std::size_t of, char const* what) {
    if (model_parallel >= 1 && of % static_cast<std::size_t>(model_parallel) == 0) return;
    fail(ErrorKind::invalid_argument,
         {model_parallel, " model-parallel ranks cannot share ", of, what, " evenly"});
  };
  divides(model.heads, " heads");
  if (model.kv_heads > 0) divides(model.kv_heads, " heads of keys and values");
  if (model.inner > 0) divides(model.inner, " channels of the MLP");
}

}  // namespace detail

/// The tensors that one of `model_parallel` ranks has, divided as Megatron-LM does it and as
/// examples/gpt trains them: embedding, a unit for each block, final norm with the head. All ranks
/// have parts of one shape, for which the vocabulary is rounded up.
/// @throws Error (invalid_argument) for sizes of 0, and heads that do not divide or are not divided
[[nodiscard]] inline std::vector<Tensor> describe(Transformer const& model,
                                                  int model_parallel = 1) {
  detail::require_sizes(model, model_parallel);
  auto const parts = static_cast<std::size_t>(model_parallel);
  std::size_t const h = model.hidden;
  std::size_t const queries = model.query_width() / parts;
  std::size_t const all_three = checked_add(queries, checked_mul(2, model.key_width() / parts));
  std::size_t const wide = model.inner_width() / parts;
  std::size_t const first = model.gated ? checked_mul(2, wide) : wide;
  bool const divided = parts > 1;
  std::vector<Tensor> all;
  auto const add = [&](std::string name,
                       std::vector<std::size_t> shape,
                       int unit,
                       bool partitioned,
                       bool adapted = false) {
    bool const matrix = shape.size() > 1;
    Tensor tensor{.name = std::move(name),
                  .shape = std::move(shape),
                  .unit = unit,
                  .weight_decay = matrix ? 1. : 0.,
                  .frozen = model.adapters > 0,
                  .partitioned = partitioned};
    if (model.wide_vectors && !matrix) tensor.dtype = DType::f32;
    std::size_t const out = tensor.shape.front();
    std::size_t const in = tensor.shape.back();
    if (adapted && tensor.frozen && model.base_bits > 0.) {
      double const bits = model.base_bits * static_cast<double>(checked_mul(out, in));
      tensor.shape = {static_cast<std::size_t>(std::ceil(bits / 8.))};
      tensor.dtype = DType::u8;
    }
    all.push_back(tensor);
    if (!adapted || !tensor.frozen) return;
    // A matrix is divided along one side, and so is the adapter that has this side.
    bool const columns = partitioned && in == h;
    all.push_back({.name = tensor.name + ".down",
                   .shape = {model.adapters, in},
                   .unit = unit,
                   .partitioned = partitioned && !columns});
    all.push_back({.name = tensor.name + ".up",
                   .shape = {out, model.adapters},
                   .unit = unit,
                   .partitioned = columns});
  };
  auto const add_bias = [&](std::string name, std::size_t size, int unit, bool partitioned) {
    if (model.biases) add(std::move(name), {size}, unit, partitioned);
  };
  std::size_t const words = ceil_div(model.vocab, parts);
  add("wte", {words, h}, 0, divided);
  if (model.learned_positions)
    add("wpe", {model.positions > 0 ? model.positions : model.sequence, h}, 0, false);
  for (int layer = 0; layer < model.layers; ++layer) {
    std::string const block = "h" + std::to_string(layer) + ".";
    int const unit = layer + 1;
    add(block + "ln1.g", {h}, unit, false);
    add_bias(block + "ln1.b", h, unit, false);
    add(block + "qkv.w", {all_three, h}, unit, divided, true);
    add_bias(block + "qkv.b", all_three, unit, divided);
    add(block + "proj.w", {h, queries}, unit, divided, true);
    add_bias(block + "proj.b", h, unit, false);
    add(block + "ln2.g", {h}, unit, false);
    add_bias(block + "ln2.b", h, unit, false);
    add(block + "fc.w", {first, h}, unit, divided, true);
    add_bias(block + "fc.b", first, unit, divided);
    add(block + "fc_proj.w", {h, wide}, unit, divided, true);
    add_bias(block + "fc_proj.b", h, unit, false);
  }
  int const head = model.layers + 1;
  add("lnf.g", {h}, head, false);
  add_bias("lnf.b", h, head, false);
  add("head.w", {words, h}, head, divided);
  if (model.tied) all.back().tied_to = "wte";
  return all;
}

/// Elements of the model, adapters apart, tied ones once.
[[nodiscard]] inline std::uint64_t parameters(Transformer model) {
  std::uint64_t sum = 0;
  model.adapters = 0;
  for (Tensor const& tensor : describe(model)) {
    if (tensor.tied_to.empty()) sum = checked_add(sum, element_count(tensor));
  }
  return sum;
}

namespace detail {

/// Widths that were trained, by parameters: GPT-2's up to 0.8 billion, then those of the appendix
/// of ZeRO, then table 1 of Narayanan et al., arXiv 2104.04473.
struct TrainedShape {
  double parameters;
  std::size_t hidden;
  std::size_t heads;
};
inline constexpr TrainedShape trained_shapes[] = {{0.124e9, 768, 12},
                                                  {0.355e9, 1024, 16},
                                                  {0.774e9, 1280, 20},
                                                  {1.5e9, 1600, 16},
                                                  {8e9, 3072, 24},
                                                  {20e9, 4096, 32},
                                                  {60e9, 6144, 64},
                                                  {100e9, 8192, 64},
                                                  {310e9, 16384, 128},
                                                  {530e9, 20480, 128},
                                                  {1008e9, 25600, 160}};
/// Blocks beyond which a wider model is meant.
inline constexpr int most_layers = 512;

}  // namespace detail

/// A model of about so many parameters: the width of the trained model that is nearest in size (on
/// a logarithmic scale), twice as wide as long as it had more than 512 blocks, and the blocks that
/// come nearest to the number. It differs by half a block at most.
/// @param wanted  parameters
/// @param sizes   of which vocab and sequence are taken
/// @throws Error (invalid_argument) if the embedding and one block are more than that, and
///   beyond 10^18
/// @par Source  appendix of ZeRO (SC'20) for widths from 1.5 to 170 billion parameters
[[nodiscard]] inline Transformer transformer_of(double wanted, Transformer const& sizes = {}) {
  if (!(wanted <= 1e18)) {
    fail(ErrorKind::invalid_argument, "a model has at most 10^18 parameters");
  }
  detail::TrainedShape const* nearest = detail::trained_shapes;
  for (detail::TrainedShape const& shape : detail::trained_shapes) {
    if (std::abs(std::log(wanted / shape.parameters)) <
        std::abs(std::log(wanted / nearest->parameters))) {
      nearest = &shape;
    }
  }
  Transformer model = sizes;
  model.hidden = nearest->hidden;
  model.heads = nearest->heads;
  for (;; model.hidden *= 2, model.heads *= 2) {
    auto const h = static_cast<double>(model.hidden);
    double const around = static_cast<double>(model.vocab + model.sequence + 2) * h;
    double const layers = std::round((wanted - around) / (12. * h * h + 13. * h));
    if (!(layers >= 1.)) {
      fail(ErrorKind::invalid_argument,
           {"no model has so few parameters with ",
            model.vocab,
            " words: their embedding and one block of width ",
            model.hidden,
            " have more; give layers and hidden instead"});
    }
    model.layers = static_cast<int>(layers);
    if (model.layers <= detail::most_layers) return model;
  }
}

}  // namespace plan
