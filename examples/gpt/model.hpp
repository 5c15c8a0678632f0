#pragma once

#include "block_inputs.hpp"
#include "model_group.hpp"
#include "pass_order.hpp"
#include "tensors.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <new>
#include <ranges>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

/// A byte-level GPT-2 with hand-written forward and backward passes.
///
/// The model owns activations only. Weights and gradients belong to whoever trains it: they are
/// handed in unit by unit, so the caller may gather a unit just before it is needed and drop it
/// afterwards. Nothing here knows how they are stored, sharded or updated.
///
/// The ranks of a `ModelGroup` divide the model as Megatron-LM does (Shoeybi et al., 2019): each
/// has some of the heads, of the hidden channels and of the vocabulary, and what flows along the
/// residual stream is the same on all of them, bit for bit.
namespace gpt {

/// Allocates on cache lines, from any resource. Eigen peels its loops by address, so equal results
/// in every instance need equal alignment in every instance. Leaves new elements unset: they are
/// always written first.
template <class Real>
class AlignedAllocator {
 public:
  using value_type = Real;
  using propagate_on_container_move_assignment = std::true_type;
  static constexpr std::size_t alignment = 64;

  /// @param memory  must outlive what is allocated
  explicit AlignedAllocator(std::pmr::memory_resource* memory = std::pmr::new_delete_resource())
      : memory_(memory) {}
  template <class Other>
  AlignedAllocator(AlignedAllocator<Other> const& other) noexcept : memory_(other.memory()) {}

  [[nodiscard]] Real* allocate(std::size_t count) {
    return static_cast<Real*>(memory_->allocate(count * sizeof(Real), alignment));
  }
  void deallocate(Real* pointer, std::size_t count) noexcept {
    memory_->deallocate(pointer, count * sizeof(Real), alignment);
  }
  template <class Element>
  void construct(Element* place) noexcept {
    ::new (static_cast<void*>(place)) Element;
  }
  [[nodiscard]] std::pmr::memory_resource* memory() const noexcept { return memory_; }
  friend bool operator==(AlignedAllocator const&, AlignedAllocator const&) = default;

 private:
  std::pmr::memory_resource* memory_;
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
///
/// Where a model group has several ranks, all of them make the same calls with the same batch, each
/// with its own part of the weights; `forward`, `backward` and `next_scores` exchange data and
/// block, and throw zero::Error if a rank fails. Every rank gets the same loss.
/// @par Traffic  all-reduces of [tokens, channels]: two per block forward and two backward, two
///   more where blocks are computed again, one in the embedding forward, one in the head backward;
///   of the loss, an all-gather of [3, tokens]
/// @tparam Real  the scalar of all arithmetic: float to train, double to check gradients
template <class Real = float>
class Gpt {
  static_assert(std::is_same_v<Real, float> || std::is_same_v<Real, double>);

 public:
  /// Allocates everything for micro-batches of up to `max_batch` sequences.
  /// @param group  with whom this rank holds the model; the communicator must outlive the object
  /// @param inputs  if given, the activations of one block at a time are held: the backward pass
  ///   computes them again from the block's input, which waits there. Must outlive the object
  /// @param memory  where activations and copies of a unit's tensors are from; must outlive the
  ///   object
  /// @throws std::invalid_argument  the configuration is impossible, or not for so many ranks
  Gpt(Config const& config,
      int max_batch,
      ModelGroup group = {},
      BlockInputs<Real>* inputs = nullptr,
      std::pmr::memory_resource* memory = std::pmr::new_delete_resource());

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
    order_.expect_forward(unit, weights);
    unpack(weights);
    compute_forward(unit);
    order_.end_forward(unit);
  }

  /// Mean cross-entropy of the micro-batch in nats.
  /// @throws std::logic_error  the forward pass is unfinished, or there were no targets
  [[nodiscard]] Real loss() const {
    order_.expect_loss();
    return loss_;
  }
  /// The sum of the losses of all forward passes since it was last asked for.
  [[nodiscard]] double take_losses() { return std::exchange(losses_, 0.); }

  /// Scores of the next byte after each input byte, [tokens, this rank's part of the vocabulary].
  /// @throws std::logic_error  the forward pass is unfinished
  [[nodiscard]] std::span<Real const> logits() const {
    order_.expect_logits();
    return {logits_.data(), inputs_.size() * vocab_.count};
  }

  /// Scores of the byte after the last input byte, [vocab], on all ranks.
  /// @throws std::logic_error  the forward pass is unfinished
  [[nodiscard]] std::span<Real const> next_scores() {
    auto const own = logits().last(vocab_.count);
    std::ranges::fill(next_scores_, Real{});
    std::ranges::copy(own, next_scores_.begin() + static_cast<std::ptrdiff_t>(vocab_.begin));
    group_.all_reduce(std::span(next_scores_));
    return next_scores_;
  }

  /// Starts the backward pass of scale · loss(). The scale carries fp16 loss scaling and the
  /// weight of this micro-batch among others. Once per forward pass, whose activations it uses up.
  /// @throws std::logic_error  the forward pass is unfinished or used up, or there were no targets
  void begin_backward(Real scale = Real{1}) {
    order_.begin_backward();
    scale_ = scale;
  }

  /// Adds the gradient of one unit to `gradients`, as g = T(float(g) + d), d in Real.
  /// The head adds its part of the tied embedding's gradient to the span given there, the
  /// embedding the other part: both may be the same memory.
  /// @throws std::logic_error  out of order, or a span of the wrong size
  template <TensorSpans Weights, TensorSpans Gradients>
  void backward(int unit, Weights const& weights, Gradients const& gradients) {
    order_.expect_backward(unit, weights, gradients);
    unpack(weights);
    compute_backward(unit);
    accumulate(gradients);
    order_.end_backward(unit);
  }

 private:
  struct Block {
    LayerNorm<Real> ln1, ln2;
    Buffer<Real> qkv;       // [tokens, 3 · own channels]
    Buffer<Real> scores;    // [batch, own heads, length, length], after the softmax
    Buffer<Real> attended;  // [tokens, own channels]
    Buffer<Real> middle;    // [tokens, channels], residual stream between attention and MLP
    Buffer<Real> hidden;    // [tokens, mlp_ratio · own channels], before the GELU
    Buffer<Real> active;    // the same after the GELU
  };

  // Working on private copies makes the arithmetic independent of the caller's addresses and types.
  template <class Weights>
  void unpack(Weights const& weights) {
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

  // The model-parallel part of the model's width that this rank has.
  [[nodiscard]] std::ptrdiff_t own_channels() const noexcept {
    return config_.channels / group_.place().size;
  }
  // Row of a byte in this rank's part of the vocabulary, or -1.
  [[nodiscard]] std::ptrdiff_t own_row(std::uint8_t byte) const noexcept {
    bool const here = byte >= vocab_.begin && byte - vocab_.begin < vocab_.count;
    return here ? static_cast<std::ptrdiff_t>(byte - vocab_.begin) : -1;
  }
  // What block `layer` reads; block `layer - 1` and the embedding write it.
  [[nodiscard]] Buffer<Real>& residual(std::size_t layer) {
    return residual_[layer % residual_.size()];
  }
  [[nodiscard]] Buffer<Real>& final_residual() {
    return residual(static_cast<std::size_t>(config_.layers));
  }
  [[nodiscard]] Block& block(std::size_t layer) { return blocks_[layer % blocks_.size()]; }
  // Elements of [tokens, channels].
  [[nodiscard]] std::size_t residual_size() const noexcept {
    return inputs_.size() * static_cast<std::size_t>(config_.channels);
  }
  void all_reduce(Buffer<Real>& buffer) const {
    group_.all_reduce(std::span(buffer).first(residual_size()));
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
  ModelGroup group_;
  PassOrder order_;
  BlockInputs<Real>* inputs_of_blocks_;  // null: all activations of all blocks are kept
  Slice vocab_;                          // this rank's
  Real scale_{1};
  Real loss_{};
  double losses_ = 0;
  std::vector<std::uint8_t> inputs_, targets_;
  std::vector<Buffer<Real>> weights_, gradients_;  // of the unit at work, by tensor

  // layers + 1 of [tokens, channels] and layers, or input and output of the block at work, and it.
  std::vector<Buffer<Real>> residual_;
  std::vector<Block> blocks_;
  LayerNorm<Real> final_ln_;
  Buffer<Real> logits_;                 // [tokens, own vocab]
  Buffer<Real> d_logits_;               // the same
  Buffer<Real> softmax_terms_;          // [ranks, 3, tokens]
  Buffer<Real> top_, sum_;              // [tokens]: the softmax is exp(logit - top) / sum
  Buffer<Real> next_scores_;            // [vocab]
  Buffer<Real> d_residual_, d_narrow_;  // [tokens, channels]
  Buffer<Real> d_wide_;                 // [tokens, mlp_ratio · own channels]
  Buffer<Real> d_scores_;               // [length, length]
};

extern template class Gpt<float>;
extern template class Gpt<double>;

}  // namespace gpt
