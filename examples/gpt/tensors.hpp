/// @file
/// The tensors of the model: names, shapes, initial values, and how model-parallel ranks divide
/// them.
#pragma once

#include "zero/checkpoint/boxes.hpp"
#include "zero/layout/tensor.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// The size of a model. `channels` must be a multiple of `heads`.
struct Config {
  int layers = 4;
  int heads = 4;
  int channels = 128;
  int context = 64;                    ///< longest sequence, in bytes
  static constexpr int vocab = 256;    ///< every byte is a token
  static constexpr int mlp_ratio = 4;  ///< width of the hidden MLP layer over `channels`

  /// Embedding, one unit per block, final layernorm with the head.
  [[nodiscard]] constexpr int units() const noexcept { return layers + 2; }
  [[nodiscard]] constexpr int head_unit() const noexcept { return layers + 1; }

  friend bool operator==(Config const&, Config const&) = default;
};

/// One of the ranks that hold a model together; by default it has no peers.
struct ModelRank {
  int rank = 0;
  int size = 1;

  friend bool operator==(ModelRank const&, ModelRank const&) = default;
};

/// Where the part [begin, begin + count) of this rank lies in [0, extent). The parts of all ranks
/// follow each other, and differ by at most one where `size` does not divide `extent`.
struct Slice {
  std::size_t begin = 0;
  std::size_t count = 0;
};
[[nodiscard]] constexpr Slice slice_of(std::size_t extent, ModelRank const& of) noexcept {
  auto const rank = static_cast<std::size_t>(of.rank);
  auto const size = static_cast<std::size_t>(of.size);
  std::size_t const begin = extent * rank / size;
  return {begin, extent * (rank + 1) / size - begin};
}

/// Describes one trainable tensor; matrices are [out, in], row-major.
struct TensorInfo {
  std::string name;
  std::vector<std::size_t> shape;  ///< of what this rank holds
  int unit = 0;       ///< 0 embedding, 1..layers blocks, layers + 1 final layernorm and head
  bool decay = true;  ///< weight decay applies: matrices and embeddings
  int tied_to = -1;   ///< index of the tensor whose storage this one shares, or -1
  int axis = -1;      ///< which model-parallel ranks divide, or -1: each of them holds all of it
  /// Into how many equal sections that axis falls, of each of which a rank has its part: queries,
  /// keys and values are three.
  std::size_t sections = 1;

  [[nodiscard]] std::size_t numel() const noexcept {
    std::size_t product = 1;
    for (std::size_t const extent : shape) product *= extent;
    return product;
  }
};

/// @throws std::invalid_argument  the configuration is impossible, or not for so many ranks
inline void check(Config const& config, ModelRank const& of) {
  auto const expect = [](bool condition, std::string const& message) {
    if (!condition) throw std::invalid_argument("gpt: " + message);
  };
  expect(config.layers >= 0 && config.heads >= 1 && config.channels >= 1 && config.context >= 1 &&
             config.channels % config.heads == 0,
         "sizes must be positive and heads must divide channels");
  std::string const ranks = std::to_string(of.size) + " model-parallel ranks";
  expect(of.size >= 1 && of.rank >= 0 && of.rank < of.size,
         "there is no rank " + std::to_string(of.rank) + " of " + ranks);
  expect(config.heads % of.size == 0,
         ranks + " cannot share " + std::to_string(config.heads) + " heads evenly");
  expect(of.size <= Config::vocab,
         ranks + " cannot share a vocabulary of " + std::to_string(Config::vocab));
}

/// The whole tensors in registration order, units ascending.
/// The last one is the head's weight, tied to the token embedding.
/// @throws std::invalid_argument  the configuration is impossible
[[nodiscard]] inline std::vector<TensorInfo> tensors(Config const& config) {
  check(config, {});
  auto const channels = static_cast<std::size_t>(config.channels);
  auto const context = static_cast<std::size_t>(config.context);
  auto const vocab = static_cast<std::size_t>(Config::vocab);
  auto const wide = channels * static_cast<std::size_t>(Config::mlp_ratio);
  constexpr int replicated = -1;
  constexpr int rows = 0;
  constexpr int columns = 1;
  std::vector<TensorInfo> all;
  auto const add = [&all](std::string name, std::vector<std::size_t> shape, int unit, int axis) {
    bool const decay = shape.size() > 1;
    all.push_back({std::move(name), std::move(shape), unit, decay, -1, axis});
  };
  add("wte", {vocab, channels}, 0, rows);
  add("wpe", {context, channels}, 0, replicated);
  for (int layer = 0; layer < config.layers; ++layer) {
    std::string block{'h'};
    block.append(std::to_string(layer)).push_back('.');
    int const unit = layer + 1;
    add(block + "ln1.g", {channels}, unit, replicated);
    add(block + "ln1.b", {channels}, unit, replicated);
    add(block + "qkv.w", {3 * channels, channels}, unit, rows);
    all.back().sections = 3;
    add(block + "qkv.b", {3 * channels}, unit, rows);
    all.back().sections = 3;
    add(block + "proj.w", {channels, channels}, unit, columns);
    add(block + "proj.b", {channels}, unit, replicated);
    add(block + "ln2.g", {channels}, unit, replicated);
    add(block + "ln2.b", {channels}, unit, replicated);
    add(block + "fc.w", {wide, channels}, unit, rows);
    add(block + "fc.b", {wide}, unit, rows);
    add(block + "fc_proj.w", {channels, wide}, unit, columns);
    add(block + "fc_proj.b", {channels}, unit, replicated);
  }
  add("lnf.g", {channels}, config.head_unit(), replicated);
  add("lnf.b", {channels}, config.head_unit(), replicated);
  add("head.w", {vocab, channels}, config.head_unit(), rows);
  all.back().tied_to = 0;
  return all;
}

/// What one of the ranks holds of them, in the same order.
/// @throws std::invalid_argument  the configuration is impossible, or not for so many ranks
[[nodiscard]] inline std::vector<TensorInfo> tensors(Config const& config, ModelRank const& of) {
  check(config, of);
  auto all = tensors(config);
  for (TensorInfo& tensor : all) {
    if (tensor.axis < 0) continue;
    auto& extent = tensor.shape[static_cast<std::size_t>(tensor.axis)];
    extent = tensor.sections * slice_of(extent / tensor.sections, of).count;
  }
  return all;
}

/// The same as the library wants it described.
/// @throws std::invalid_argument  the configuration is impossible, or not for so many ranks
[[nodiscard]] inline std::vector<zero::Tensor> describe(Config const& config, ModelRank const& of) {
  std::vector<zero::Tensor> described;
  auto const all = tensors(config, of);
  for (TensorInfo const& tensor : all) {
    described.push_back(
        {.name = tensor.name,
         .shape = tensor.shape,
         .unit = tensor.unit,
         .weight_decay = tensor.decay ? 1.f : 0.f,
         .tied_to = tensor.tied_to < 0 ? "" : all[static_cast<std::size_t>(tensor.tied_to)].name,
         .partitioned = of.size > 1 && tensor.axis >= 0});
  }
  return described;
}

/// Where this rank's tensors lie in the whole ones, as zero's checkpoints want to know it: an entry
/// for each that is divided; of the others every rank holds the same whole. Empty for one rank.
/// @throws std::invalid_argument  the configuration is impossible, or not for so many ranks
[[nodiscard]] inline std::vector<zero::TensorPart> parts(Config const& config,
                                                         ModelRank const& of) {
  check(config, of);
  std::vector<zero::TensorPart> all;
  for (TensorInfo const& tensor : tensors(config)) {
    if (tensor.axis < 0 || of.size == 1) continue;
    auto const axis = static_cast<std::size_t>(tensor.axis);
    std::size_t const section = tensor.shape[axis] / tensor.sections;
    Slice const own = slice_of(section, of);
    zero::TensorPart part{.tensor = tensor.name,
                          .shape = {tensor.shape.begin(), tensor.shape.end()}};
    for (std::size_t s = 0; s < tensor.sections; ++s) {
      zero::Box box{.offset = std::vector<std::uint64_t>(part.shape.size(), 0),
                    .extent = part.shape};
      box.offset[axis] = s * section + own.begin;
      box.extent[axis] = own.count;
      part.boxes.push_back(std::move(box));
    }
    all.push_back(std::move(part));
  }
  return all;
}

/// 64 random bits that are a pure function of the keys: a counter-based generator has no state to
/// keep in step between ranks.
template <class... Keys>
[[nodiscard]] constexpr std::uint64_t random_bits(std::uint64_t seed, Keys... keys) noexcept {
  auto const mix = [](std::uint64_t bits) {  // the finaliser of SplitMix64
    bits = (bits ^ (bits >> 30U)) * 0xbf58476d1ce4e5b9U;
    bits = (bits ^ (bits >> 27U)) * 0x94d049bb133111ebU;
    return bits ^ (bits >> 31U);
  };
  std::uint64_t bits = mix(seed + 0x9e3779b97f4a7c15U);
  ((bits = mix(bits + 0x9e3779b97f4a7c15U * (static_cast<std::uint64_t>(keys) + 1))), ...);
  return bits;
}

/// Writes elements [first, first + out.size()) of what a rank holds of the GPT-2 initialisation of
/// one tensor.
///
/// Each value depends on (seed, tensor, element of the whole tensor) alone, so any range can be
/// produced by itself, in any order, on any rank, and any number of model-parallel ranks starts
/// from the same model. A tied tensor yields the values of the tensor it is tied to.
/// @throws std::out_of_range  the tensor or the range does not exist
inline void initial_values(Config const& config,
                           std::uint64_t seed,
                           int tensor,
                           std::size_t first,
                           std::span<float> out,
                           ModelRank const& of = {}) {
  auto const all = tensors(config);
  auto const held = tensors(config, of);
  auto index = static_cast<std::size_t>(tensor);
  if (tensor < 0 || index >= all.size() || first > held[index].numel() ||
      out.size() > held[index].numel() - first) {
    throw std::out_of_range("gpt: initial_values beyond the tensors");
  }
  if (all[index].tied_to >= 0) index = static_cast<std::size_t>(all[index].tied_to);
  TensorInfo const& whole = all[index];
  if (whole.shape.size() == 1) {  // biases, and the gains of layernorms
    std::ranges::fill(out, whole.name.ends_with(".g") ? 1.F : 0.F);
    return;
  }
  // A rank's part repeats: of every `stride` elements of the whole, `run` from `begin` on.
  std::size_t stride = whole.numel();
  std::size_t run = stride;
  std::size_t begin = 0;
  if (whole.axis >= 0) {
    std::size_t const section = whole.shape[static_cast<std::size_t>(whole.axis)] / whole.sections;
    std::size_t const inner = whole.axis == 0 ? whole.shape[1] : 1;
    Slice const own = slice_of(section, of);
    stride = section * inner;
    run = own.count * inner;
    begin = own.begin * inner;
  }
  // Each block adds twice to the residual stream; the factor keeps its variance in check.
  bool const into_residual = whole.name.ends_with("proj.w");
  double const deviation = into_residual ? 0.02 / std::sqrt(2.0 * config.layers) : 0.02;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::size_t const place = (first + i) / run * stride + begin + (first + i) % run;
    std::uint64_t const bits = random_bits(seed, index, place);
    double const above_zero = (static_cast<double>(bits >> 32U) + 1) * 0x1p-32;
    double const turn = static_cast<double>(bits & 0xffffffffU) * 0x1p-32;
    double const normal =  // Box-Muller
        std::sqrt(-2 * std::log(above_zero)) * std::cos(2 * std::numbers::pi * turn);
    out[i] = static_cast<float>(deviation * normal);
  }
}

}  // namespace gpt
