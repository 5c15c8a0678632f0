/// @file
/// The GPT of ../model.hpp with weights, gradients and activations in a device's memory.
#pragma once

#include "device_memory.hpp"
#include "limits.hpp"
#include "pass_order.hpp"
#include "products.hpp"
#include "tensors.hpp"
#include "zero/space/cuda.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory_resource>
#include <span>
#include <utility>
#include <vector>

namespace gpt {

/// Calls, losses and gradients are those of Gpt, but for rounding; the spans are of the device's
/// memory, and every call enqueues in the space's stream and returns, unless it says otherwise.
/// Weights are read and gradients are added where they lie. Activations have the type of the
/// weights; sums, statistics of layer norms, scores of the vocabulary and losses are in fp32.
///
/// A device computes whole contexts: shorter sequences are filled up behind their end, which
/// nothing before it sees.
/// @tparam T  float or zero::bf16
template <class T>
class DeviceGpt {
 public:
  /// Allocates everything for micro-batches of up to `max_batch` sequences.
  /// @param space   the device, and the stream in which the trainer works
  /// @param memory  of the device; must outlive the object
  /// @throws std::invalid_argument  there is no such model, or `device_refusal` has a reason
  DeviceGpt(Config const& config,
            int max_batch,
            zero::space::Cuda space,
            std::pmr::memory_resource* memory);

  [[nodiscard]] Config const& config() const noexcept { return config_; }

  /// As of Gpt. Waits until the micro-batch before has left the host's memory.
  /// @throws std::invalid_argument  also for targets of sequences shorter than the context
  void set_batch(std::span<std::uint8_t const> inputs,
                 std::span<std::uint8_t const> targets,
                 int length);
  void set_batch(std::span<std::uint8_t const> inputs, std::span<std::uint8_t const> targets) {
    set_batch(inputs, targets, config_.context);
  }

  template <TensorSpans Weights>
  void forward(int unit, Weights const& weights) {
    order_.expect_forward(unit, weights);
    timed(unit, [&] { compute_forward(unit, pointers<T const>(weights)); });
    order_.end_forward(unit);
  }

  void begin_backward(float scale = 1.f) {
    order_.begin_backward();
    scale_ = scale;
  }

  template <TensorSpans Weights, TensorSpans Gradients>
  void backward(int unit, Weights const& weights, Gradients const& gradients) {
    order_.expect_backward(unit, weights, gradients);
    timed(config_.units() + unit,
          [&] { compute_backward(unit, pointers<T const>(weights), pointers<T>(gradients)); });
    order_.end_backward(unit);
  }

  /// As of Gpt. Blocks until all that is enqueued is done.
  [[nodiscard]] double take_losses();
  /// As of Gpt. Blocks until all that is enqueued is done.
  [[nodiscard]] std::span<float const> next_scores();
  /// In which the stream was busy with the units of the last micro-batch, whose backward pass it
  /// has ended.
  [[nodiscard]] double seconds() const;

 private:
  template <class Element>
  using Pointers = std::array<Element*, 12>;
  struct LayerNorm {
    float* mean;
    float* rdev;
    T* out;
  };
  struct Block {
    LayerNorm ln1, ln2;
    T* heads;     // queries, keys, values head by head: 3 of [batch, heads, length, head_size]
    T* scores;    // [batch, heads, length, length], after the softmax
    T* attended;  // [tokens, channels]
    T* middle;    // [tokens, channels], residual stream between attention and MLP
    T* hidden;    // [tokens, mlp_ratio · channels], before the GELU
    T* active;    // the same after the GELU
  };

  template <class Element, class Spans>
  static Pointers<Element> pointers(Spans const& spans) {
    Pointers<Element> result{};
    std::size_t i = 0;
    for (auto const& span : spans) result[i++] = span.data();
    return result;
  }
  template <class Compute>
  void timed(int which, Compute const& compute) {
    auto const i = static_cast<std::size_t>(which) * 2;
    events_[i].record(space_.stream());
    compute();
    events_[i + 1].record(space_.stream());
  }

  void lay_out(DeviceArrays& arrays);
  void compute_forward(int unit, Pointers<T const> const& w);
  void compute_backward(int unit, Pointers<T const> const& w, Pointers<T> const& g);
  void embedding_forward(Pointers<T const> const& w);
  void embedding_backward(Pointers<T> const& g);
  void block_forward(std::size_t layer, Pointers<T const> const& w);
  void block_backward(std::size_t layer, Pointers<T const> const& w, Pointers<T> const& g);
  void head_forward(Pointers<T const> const& w);
  void head_backward(Pointers<T const> const& w, Pointers<T> const& g);

  void attention_forward(Block const& block, T const* bias);
  void attention_backward(Block const& block);
  void layernorm(T const* x, T const* gain, T const* bias, LayerNorm const& norm);
  void layernorm_backward(T const* x, LayerNorm const& norm, T const* gain, T* d_gain, T* d_bias);
  void linear(std::size_t out, std::size_t in, T const* x, T const* weight, T* y);
  void linear_backward(std::size_t out,
                       std::size_t in,
                       T const* d_out,
                       T const* x,
                       T const* weight,
                       T* d_x,
                       T* d_weight,
                       T* d_bias);
  template <class Term>
  void add_column_sums(Term const& term, std::size_t columns, T* gradient);
  template <auto kernel, class... Arguments>
  void launch(char const* what, std::size_t items, Arguments const&... arguments) const;

  Config config_;
  PassOrder order_;
  zero::space::Cuda space_;
  std::size_t max_tokens_, length_, channels_, wide_;
  std::size_t tokens_ = 0;  // of the micro-batch
  std::size_t batch_ = 0;
  std::size_t last_ = 0;  // the token whose scores `next_scores` gives
  float scale_ = 1.f;
  std::vector<float> next_scores_;

  std::uint8_t* inputs_ = nullptr;  // [tokens], and the targets behind them
  std::vector<T*> residual_;        // layers + 1 of [tokens, channels]
  std::vector<Block> blocks_;
  LayerNorm final_ln_{};
  float* logits_ = nullptr;         // [tokens, vocab]
  T* d_logits_ = nullptr;           // the same; then the bytes, one-hot
  float* top_ = nullptr;            // [tokens]: the softmax is exp(logit - top) / sum
  float* sum_ = nullptr;            // [tokens]
  float* losses_ = nullptr;         // [tokens]
  double* loss_ = nullptr;          // since it was asked for
  T* d_residual_ = nullptr;         // [tokens, channels]
  T* d_narrow_ = nullptr;           // [tokens, channels]
  T* d_wide_ = nullptr;             // [tokens, mlp_ratio · channels]
  T* d_heads_ = nullptr;            // as Block::heads, and one more
  T* d_scores_ = nullptr;           // as Block::scores
  float* column_sums_ = nullptr;    // [chunks, mlp_ratio · channels]
  std::byte* workspace_ = nullptr;  // of products

  PinnedBytes staging_;
  Event copied_;
  std::deque<Event> events_;  // before and behind each unit, forward and backward
  DeviceArrays arrays_;       // all of the above
  Products products_;
};

extern template class DeviceGpt<float>;
extern template class DeviceGpt<zero::bf16>;

}  // namespace gpt
