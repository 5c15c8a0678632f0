#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <new>
#include <numbers>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// A byte-level GPT-2 with hand-written forward and backward passes.
///
/// The model owns activations only. Weights and gradients belong to whoever trains it: they are
/// handed in unit by unit, so the caller may gather a unit just before it is needed and drop it
/// afterwards. Nothing here knows how they are stored, sharded or updated.
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

/// Describes one trainable tensor; matrices are [out, in], row-major.
struct TensorInfo {
  std::string name;
  std::vector<std::size_t> shape;
  int unit = 0;       ///< 0 embedding, 1..layers blocks, layers + 1 final layernorm and head
  bool decay = true;  ///< weight decay applies: matrices and embeddings
  int tied_to = -1;   ///< index of the tensor whose storage this one shares, or -1

  [[nodiscard]] std::size_t numel() const noexcept {
    std::size_t product = 1;
    for (std::size_t const extent : shape) product *= extent;
    return product;
  }
};

/// All tensors in registration order, units ascending.
/// The last one is the head's weight, tied to the token embedding.
/// @throws std::invalid_argument  the configuration is impossible
[[nodiscard]] inline std::vector<TensorInfo> tensors(Config const& config) {
  if (config.layers < 0 || config.heads < 1 || config.channels < 1 || config.context < 1 ||
      config.channels % config.heads != 0) {
    throw std::invalid_argument("gpt: sizes must be positive and heads must divide channels");
  }
  auto const channels = static_cast<std::size_t>(config.channels);
  auto const context = static_cast<std::size_t>(config.context);
  auto const vocab = static_cast<std::size_t>(Config::vocab);
  auto const wide = channels * static_cast<std::size_t>(Config::mlp_ratio);
  std::vector<TensorInfo> all;
  auto const add =
      [&all](std::string name, std::vector<std::size_t> shape, int unit, int tied_to = -1) {
        bool const decay = shape.size() > 1;
        all.push_back({std::move(name), std::move(shape), unit, decay, tied_to});
      };
  add("wte", {vocab, channels}, 0);
  add("wpe", {context, channels}, 0);
  for (int layer = 0; layer < config.layers; ++layer) {
    std::string block{'h'};
    block.append(std::to_string(layer)).push_back('.');
    int const unit = layer + 1;
    add(block + "ln1.g", {channels}, unit);
    add(block + "ln1.b", {channels}, unit);
    add(block + "qkv.w", {3 * channels, channels}, unit);
    add(block + "qkv.b", {3 * channels}, unit);
    add(block + "proj.w", {channels, channels}, unit);
    add(block + "proj.b", {channels}, unit);
    add(block + "ln2.g", {channels}, unit);
    add(block + "ln2.b", {channels}, unit);
    add(block + "fc.w", {wide, channels}, unit);
    add(block + "fc.b", {wide}, unit);
    add(block + "fc_proj.w", {channels, wide}, unit);
    add(block + "fc_proj.b", {channels}, unit);
  }
  add("lnf.g", {channels}, config.head_unit());
  add("lnf.b", {channels}, config.head_unit());
  add("head.w", {vocab, channels}, config.head_unit(), 0);
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

/// Writes elements [first, first + out.size()) of the GPT-2 initialisation of one tensor.
///
/// Each value depends on (seed, tensor, element index) alone, so any range can be produced by
/// itself, in any order, on any rank. A tied tensor yields the values of the tensor it is tied to.
/// @throws std::out_of_range  the tensor or the range does not exist
inline void initial_values(
    Config const& config, std::uint64_t seed, int tensor, std::size_t first, std::span<float> out) {
  auto const all = tensors(config);
  auto index = static_cast<std::size_t>(tensor);
  if (tensor < 0 || index >= all.size() || first > all[index].numel() ||
      out.size() > all[index].numel() - first) {
    throw std::out_of_range("gpt: initial_values beyond the tensors");
  }
  if (all[index].tied_to >= 0) index = static_cast<std::size_t>(all[index].tied_to);
  std::string const& name = all[index].name;
  if (all[index].shape.size() == 1) {  // biases, and the gains of layernorms
    std::ranges::fill(out, name.ends_with(".g") ? 1.F : 0.F);
    return;
  }
  // Each block adds twice to the residual stream; the factor keeps its variance in check.
  bool const into_residual = name.ends_with("proj.w");
  double const deviation = into_residual ? 0.02 / std::sqrt(2.0 * config.layers) : 0.02;
  for (std::size_t i = 0; i < out.size(); ++i) {
    std::uint64_t const bits = random_bits(seed, index, first + i);
    double const above_zero = (static_cast<double>(bits >> 32U) + 1) * 0x1p-32;
    double const turn = static_cast<double>(bits & 0xffffffffU) * 0x1p-32;
    double const normal =  // Box-Muller
        std::sqrt(-2 * std::log(above_zero)) * std::cos(2 * std::numbers::pi * turn);
    out[i] = static_cast<float>(deviation * normal);
  }
}

/// The tensors of one unit in registration order: a range of spans (a vector or array of them).
/// Elements are float, double, or a 16-bit type constructible from and convertible to float.
template <class Range>
concept TensorSpans = std::ranges::random_access_range<Range const> &&
    std::ranges::contiguous_range<std::ranges::range_reference_t<Range const>>;

/// Allocates on cache lines. Eigen peels its loops by address, so equal results in every instance
/// need equal alignment in every instance. Leaves new elements unset: they are always written
/// first.
template <class Real>
struct AlignedAllocator {
  using value_type = Real;
  static constexpr std::align_val_t alignment{64};

  AlignedAllocator() = default;
  template <class Other>
  AlignedAllocator(AlignedAllocator<Other> const& /*other*/) noexcept {}

  [[nodiscard]] Real* allocate(std::size_t count) {
    return static_cast<Real*>(::operator new(count * sizeof(Real), alignment));
  }
  void deallocate(Real* pointer, std::size_t /*count*/) noexcept {
    ::operator delete(pointer, alignment);
  }
  template <class Element>
  void construct(Element* place) noexcept {
    ::new (static_cast<void*>(place)) Element;
  }
  friend bool operator==(AlignedAllocator const&, AlignedAllocator const&) = default;
};

template <class Real>
using Buffer = std::vector<Real, AlignedAllocator<Real>>;

/// What a layernorm leaves behind for the way back.
template <class Real>
struct LayerNorm {
  Buffer<Real> mean, rdev;  ///< [tokens]; rdev is 1 / standard deviation
  Buffer<Real> out;         ///< [tokens, channels]
};

/// One micro-batch on its way through the network.
///
/// Order of calls: set_batch; forward for units 0, 1, …, layers + 1; loss or logits; and to train,
/// begin_backward and then backward for units layers + 1, …, 1, 0. The result depends on the values
/// handed in alone, never on where they lie in memory. Single-threaded; distinct objects may be
/// used by distinct threads.
/// @tparam Real  the scalar of all arithmetic: float to train, double to check gradients
template <class Real = float>
class Gpt {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);

 public:
  /// Allocates everything for micro-batches of up to `max_batch` sequences.
  /// @throws std::invalid_argument  the configuration is impossible
  Gpt(Config const& config, int max_batch);

  [[nodiscard]] Config const& config() const noexcept { return config_; }

  /// Sets the tokens of the next pass: sequences of `length` bytes, one after the other.
  /// `targets` holds the byte that follows each input byte; it may be empty, then there is no loss.
  /// @throws std::invalid_argument  sizes disagree, or exceed the context or `max_batch`
  void set_batch(std::span<std::uint8_t const> inputs,
                 std::span<std::uint8_t const> targets,
                 int length);
  void set_batch(std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets) {
    set_batch(inputs, targets, config_.context);
  }

  /// Runs one unit; `weights` holds its tensors in registration order.
  /// @throws std::logic_error  out of order, or a span of the wrong size
  template <TensorSpans Weights>
  void forward(int unit, Weights const& weights) {
    expect(exists(unit) && next_forward_ == unit, "gpt: forward runs unit by unit from 0");
    unpack(unit, weights);
    compute_forward(unit);
    next_forward_ = unit + 1;
  }

  /// Mean cross-entropy of the micro-batch in nats.
  /// @throws std::logic_error  the forward pass is unfinished, or there were no targets
  [[nodiscard]] Real loss() const {
    expect(has_loss(), "gpt: there is no loss yet");
    return loss_;
  }

  /// Scores of the next byte after each input byte, [tokens, vocab].
  /// @throws std::logic_error  the forward pass is unfinished
  [[nodiscard]] std::span<Real const> logits() const {
    expect(next_forward_ == config_.units(), "gpt: there are no logits yet");
    return {logits_.data(), inputs_.size() * static_cast<std::size_t>(Config::vocab)};
  }

  /// Starts the backward pass of scale · loss(). The scale carries fp16 loss scaling and the
  /// weight of this micro-batch among others. Once per forward pass, whose activations it uses up.
  /// @throws std::logic_error  the forward pass is unfinished or used up, or there were no targets
  void begin_backward(Real scale = Real{1}) {
    expect(has_loss() && !used_up_, "gpt: there is no forward pass to go back");
    scale_ = scale;
    used_up_ = true;
    next_backward_ = config_.head_unit();
  }

  /// Adds the gradient of one unit to `gradients`, as g = T(float(g) + d), d in Real.
  /// The head adds its part of the tied embedding's gradient to the span given there, the
  /// embedding the other part: both may be the same memory.
  /// @throws std::logic_error  out of order, or a span of the wrong size
  template <TensorSpans Weights, TensorSpans Gradients>
  void backward(int unit, Weights const& weights, Gradients const& gradients) {
    expect(exists(unit) && next_backward_ == unit,
           "gpt: backward runs after begin_backward, from the head down");
    check_sizes(unit, gradients);
    unpack(unit, weights);
    compute_backward(unit);
    accumulate(gradients);
    next_backward_ = unit - 1;
  }

 private:
  struct Block {
    LayerNorm<Real> ln1, ln2;
    Buffer<Real> qkv;       // [tokens, 3 · channels]
    Buffer<Real> scores;    // [batch, heads, length, length], after the softmax
    Buffer<Real> attended;  // [tokens, channels]
    Buffer<Real> middle;    // [tokens, channels], residual stream between attention and MLP
    Buffer<Real> hidden;    // [tokens, mlp_ratio · channels], before the GELU
    Buffer<Real> active;    // the same after the GELU
  };

  static constexpr int none = -1;

  [[nodiscard]] bool exists(int unit) const noexcept { return unit >= 0 && unit < config_.units(); }

  [[nodiscard]] bool has_loss() const noexcept {
    return next_forward_ == config_.units() && !targets_.empty();
  }

  static void expect(bool condition, char const* message) {
    if (!condition) throw std::logic_error(message);
  }

  template <class Spans>
  void check_sizes(int unit, Spans const& spans) const {
    auto const& sizes = sizes_[static_cast<std::size_t>(unit)];
    bool equal = std::ranges::size(spans) == sizes.size();
    for (std::size_t i = 0; equal && i < sizes.size(); ++i) {
      equal =
          std::ranges::size(std::ranges::begin(spans)[static_cast<std::ptrdiff_t>(i)]) == sizes[i];
    }
    expect(equal, "gpt: the spans do not match the tensors of the unit");
  }

  // Working on private copies makes the arithmetic independent of the caller's addresses and types.
  template <class Weights>
  void unpack(int unit, Weights const& weights) {
    check_sizes(unit, weights);
    std::size_t slot = 0;
    for (auto const& source : weights) {
      weights_[slot].resize(std::ranges::size(source));
      gradients_[slot].resize(std::ranges::size(source));
      Real* target = weights_[slot++].data();
      for (auto const& value : source) *target++ = to_real(value);
    }
  }

  template <class Gradients>
  void accumulate(Gradients const& gradients) const {
    std::size_t slot = 0;
    for (auto const& target : gradients) {
      Real const* source = gradients_[slot++].data();
      for (auto& value : target) {
        using T = std::remove_cvref_t<decltype(value)>;
        value = static_cast<T>(widened(value) + static_cast<decltype(widened(value))>(*source++));
      }
    }
  }

  template <class T>
  static auto widened(T const& value) {
    if constexpr (std::is_same_v<T, double>) {
      return value;
    } else {
      return static_cast<float>(value);
    }
  }
  template <class T>
  static Real to_real(T const& value) {
    return static_cast<Real>(widened(value));
  }

  void compute_forward(int unit);
  void compute_backward(int unit);
  void embedding_forward();
  void embedding_backward();
  void block_forward(std::size_t layer);
  void block_backward(std::size_t layer);
  void head_forward();
  void head_backward();

  Config config_;
  int max_batch_;
  int batch_ = 0;
  int length_ = 0;
  int next_forward_ = none;
  int next_backward_ = none;
  bool used_up_ = false;
  Real scale_{1};
  Real loss_{};
  std::vector<std::vector<std::size_t>> sizes_;  // by unit, by tensor
  std::vector<std::uint8_t> inputs_, targets_;
  std::vector<Buffer<Real>> weights_, gradients_;  // of the unit at work, by tensor

  std::vector<Buffer<Real>> residual_;  // layers + 1 of [tokens, channels]: what each block reads
  std::vector<Block> blocks_;
  LayerNorm<Real> final_ln_;
  Buffer<Real> logits_;                 // [tokens, vocab]
  Buffer<Real> d_logits_;               // the same
  Buffer<Real> d_residual_, d_narrow_;  // [tokens, channels]
  Buffer<Real> d_wide_;                 // [tokens, mlp_ratio · channels]
  Buffer<Real> d_scores_;               // [length, length]
};

extern template class Gpt<float>;
extern template class Gpt<double>;

}  // namespace gpt
