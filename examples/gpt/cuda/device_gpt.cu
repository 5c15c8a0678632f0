#include "device_gpt.hpp"
#include "kernels.cuh"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <tuple>
#include <utility>

namespace gpt {

template <class T>
DeviceGpt<T>::DeviceGpt(Config const& config,
                        int max_batch,
                        zero::space::Cuda space,
                        std::pmr::memory_resource* memory)
    : config_(config),
      order_(config, max_batch),
      space_(std::move(space)),
      max_tokens_(static_cast<std::size_t>(max_batch) * static_cast<std::size_t>(config.context)),
      length_(static_cast<std::size_t>(config.context)),
      channels_(static_cast<std::size_t>(config.channels)),
      wide_(channels_ * static_cast<std::size_t>(Config::mlp_ratio)),
      next_scores_(static_cast<std::size_t>(Config::vocab)),
      staging_(2 * max_tokens_),
      copied_(space_.queue()),
      arrays_([this](DeviceArrays& arrays) { lay_out(arrays); }, memory),
      products_(space_, workspace_) {
  if (char const* const reason = device_refusal(config)) throw std::invalid_argument(reason);
  for (int i = 0; i < 4 * config.units(); ++i) events_.emplace_back(space_.queue());
  space_.zero(loss_, sizeof(*loss_));
}

template <class T>
void DeviceGpt<T>::lay_out(DeviceArrays& arrays) {
  std::size_t const tokens = max_tokens_;
  std::size_t const narrow = tokens * channels_;
  std::size_t const wide = tokens * wide_;
  std::size_t const scores = tokens * length_ * static_cast<std::size_t>(config_.heads);
  std::size_t const vocab = tokens * static_cast<std::size_t>(Config::vocab);
  auto const array = [&](std::size_t count) { return arrays.array<T>(count); };
  auto const numbers = [&](std::size_t count) { return arrays.array<float>(count); };
  auto const layernorm = [&] {
    return LayerNorm{.mean = numbers(tokens), .rdev = numbers(tokens), .out = array(narrow)};
  };
  inputs_ = arrays.array<std::uint8_t>(2 * tokens);
  residual_.clear();
  blocks_.clear();
  for (int layer = 0; layer <= config_.layers; ++layer) residual_.push_back(array(narrow));
  for (int layer = 0; layer < config_.layers; ++layer) {
    blocks_.push_back({.ln1 = layernorm(),
                       .ln2 = layernorm(),
                       .heads = array(3 * narrow),
                       .scores = array(scores),
                       .attended = array(narrow),
                       .middle = array(narrow),
                       .hidden = array(wide),
                       .active = array(wide)});
  }
  final_ln_ = layernorm();
  logits_ = numbers(vocab);
  d_logits_ = array(vocab);
  top_ = numbers(tokens);
  sum_ = numbers(tokens);
  losses_ = numbers(tokens);
  loss_ = arrays.array<double>(1);
  d_residual_ = array(narrow);
  d_narrow_ = array(narrow);
  d_wide_ = array(wide);
  d_heads_ = array(4 * narrow);
  d_scores_ = array(scores);
  column_sums_ = numbers(kernels::chunks_of(tokens) * wide_);
  workspace_ = arrays.array<std::byte>(Products::workspace_bytes);
}

template <class T>
void DeviceGpt<T>::set_batch(std::span<std::uint8_t const> inputs,
                             std::span<std::uint8_t const> targets,
                             int length) {
  order_.set_batch(inputs.size(), targets.size(), length);
  auto const given = static_cast<std::size_t>(length);
  if (!targets.empty() && given != length_) {
    throw std::invalid_argument("gpt: a device learns from whole contexts");
  }
  batch_ = static_cast<std::size_t>(order_.batch());
  tokens_ = batch_ * length_;
  last_ = tokens_ - length_ + given - 1;
  copied_.wait();
  std::fill_n(staging_.data(), 2 * tokens_, std::uint8_t{});
  for (std::size_t sequence = 0; sequence < batch_; ++sequence) {
    std::ranges::copy(inputs.subspan(sequence * given, given),
                      staging_.data() + sequence * length_);
  }
  std::ranges::copy(targets, staging_.data() + tokens_);
  zero::device::QueueScope const scope(space_.queue());
  zero::device::check(
      cudaMemcpyAsync(
          inputs_, staging_.data(), 2 * tokens_, cudaMemcpyHostToDevice, space_.stream()),
      "copying a batch");
  copied_.record(space_.stream());
}

template <class T>
double DeviceGpt<T>::take_losses() {
  double sum = 0;
  space_.download(&sum, loss_, sizeof(sum));
  space_.zero(loss_, sizeof(sum));
  return sum;
}

template <class T>
std::span<float const> DeviceGpt<T>::next_scores() {
  order_.expect_logits();
  space_.download(next_scores_.data(),
                  logits_ + last_ * next_scores_.size(),
                  next_scores_.size() * sizeof(float));
  return next_scores_;
}

template <class T>
double DeviceGpt<T>::seconds() const {
  double sum = 0;
  for (std::size_t i = 0; i < events_.size(); i += 2) {
    sum += events_[i + 1].seconds_since(events_[i]);
  }
  return sum;
}

template <class T>
template <auto kernel, class... Arguments>
void DeviceGpt<T>::launch(char const* what,
                          std::size_t items,
                          Arguments const&... arguments) const {
  zero::device::launch_over<kernel>(space_.queue(), what, items, arguments...);
}

template <class T>
void DeviceGpt<T>::compute_forward(int unit, Pointers<T const> const& w) {
  if (unit == 0) return embedding_forward(w);
  if (unit == config_.head_unit()) return head_forward(w);
  block_forward(static_cast<std::size_t>(unit - 1), w);
}

template <class T>
void DeviceGpt<T>::compute_backward(int unit, Pointers<T const> const& w, Pointers<T> const& g) {
  if (unit == 0) return embedding_backward(g);
  if (unit == config_.head_unit()) return head_backward(w, g);
  block_backward(static_cast<std::size_t>(unit - 1), w, g);
}

// --- Units

template <class T>
void DeviceGpt<T>::embedding_forward(Pointers<T const> const& w) {
  auto const [wte, wpe] = std::pair(w[0], w[1]);
  launch<kernels::embed<T>>("embed",
                            tokens_ * channels_ / kernels::width<T>,
                            inputs_,
                            wte,
                            wpe,
                            residual_.front(),
                            tokens_,
                            length_,
                            channels_);
}

template <class T>
void DeviceGpt<T>::embedding_backward(Pointers<T> const& g) {
  auto const [d_wte, d_wpe] = std::pair(g[0], g[1]);
  std::size_t const vocab = next_scores_.size();
  launch<kernels::one_hot<T>>(
      "one_hot", tokens_ * vocab / kernels::width<T>, inputs_, d_logits_, tokens_);
  products_({.a_transposed = true, .m = vocab, .n = channels_, .k = tokens_, .adds = true},
            d_logits_,
            d_residual_,
            d_wte);
  std::size_t const size = length_ * channels_;
  launch<kernels::add_positions<T>>(
      "add_positions", size / kernels::width<T>, d_residual_, d_wpe, tokens_ * channels_, size);
}

template <class T>
void DeviceGpt<T>::block_forward(std::size_t layer, Pointers<T const> const& w) {
  auto const [ln1_g, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_g, ln2_b, fc_w, fc_b, out_w, out_b] =
      w;
  Block const& block = blocks_[layer];
  T const* const x = residual_[layer];
  auto const add_to = [&](T const* residual, T const* product, T const* bias, T* out) {
    launch<kernels::add_to_residual<T>>("add_to_residual",
                                        tokens_ * channels_ / kernels::width<T>,
                                        product,
                                        bias,
                                        residual,
                                        out,
                                        tokens_ * channels_,
                                        channels_);
  };
  layernorm(x, ln1_g, ln1_b, block.ln1);
  linear(3 * channels_, channels_, block.ln1.out, qkv_w, d_wide_);
  attention_forward(block, qkv_b);
  linear(channels_, channels_, block.attended, proj_w, d_narrow_);
  add_to(x, d_narrow_, proj_b, block.middle);

  layernorm(block.middle, ln2_g, ln2_b, block.ln2);
  linear(wide_, channels_, block.ln2.out, fc_w, block.hidden);
  launch<kernels::gelu<T>>("gelu",
                           tokens_ * wide_ / kernels::width<T>,
                           block.hidden,
                           fc_b,
                           block.active,
                           tokens_ * wide_,
                           wide_);
  linear(channels_, wide_, block.active, out_w, d_narrow_);
  add_to(block.middle, d_narrow_, out_b, residual_[layer + 1]);
}

// d_residual_ arrives as the gradient of the block's output and leaves as that of its input.
template <class T>
void DeviceGpt<T>::block_backward(std::size_t layer,
                                  Pointers<T const> const& w,
                                  Pointers<T> const& g) {
  auto const [ln1_g, ln1_b, qkv_w, qkv_b, proj_w, proj_b, ln2_g, ln2_b, fc_w, fc_b, out_w, out_b] =
      w;
  Block const& block = blocks_[layer];
  linear_backward(channels_, wide_, d_residual_, block.active, out_w, d_wide_, g[10], g[11]);
  launch<kernels::gelu_backward<T>>(
      "gelu_backward", tokens_ * wide_ / kernels::width<T>, block.hidden, d_wide_, tokens_ * wide_);
  linear_backward(wide_, channels_, d_wide_, block.ln2.out, fc_w, d_narrow_, g[8], g[9]);
  layernorm_backward(block.middle, block.ln2, ln2_g, g[6], g[7]);

  linear_backward(channels_, channels_, d_residual_, block.attended, proj_w, d_narrow_, g[4], g[5]);
  attention_backward(block);
  linear_backward(3 * channels_, channels_, d_wide_, block.ln1.out, qkv_w, d_narrow_, g[2], g[3]);
  layernorm_backward(residual_[layer], block.ln1, ln1_g, g[0], g[1]);
}

template <class T>
void DeviceGpt<T>::head_forward(Pointers<T const> const& w) {
  auto const [gain, bias, weight] = std::tuple(w[0], w[1], w[2]);
  layernorm(residual_.back(), gain, bias, final_ln_);
  products_({.b_transposed = true, .m = tokens_, .n = next_scores_.size(), .k = channels_},
            final_ln_.out,
            weight,
            logits_);
  if (!order_.has_targets()) return;
  launch<kernels::cross_entropy<float>>("cross_entropy",
                                        tokens_ * kernels::warp,
                                        logits_,
                                        inputs_ + tokens_,
                                        kernels::Softmax{top_, sum_},
                                        losses_,
                                        tokens_);
  zero::device::launch(space_.queue(),
                       "add_mean",
                       1,
                       zero::device::block_threads,
                       kernels::add_mean<float>,
                       losses_,
                       tokens_,
                       loss_);
}

template <class T>
void DeviceGpt<T>::head_backward(Pointers<T const> const& w, Pointers<T> const& g) {
  std::size_t const vocab = next_scores_.size();
  launch<kernels::cross_entropy_backward<T>>("cross_entropy_backward",
                                             tokens_ * vocab / kernels::width<T>,
                                             logits_,
                                             inputs_ + tokens_,
                                             kernels::Softmax{top_, sum_},
                                             scale_ / static_cast<float>(tokens_),
                                             d_logits_,
                                             tokens_);
  products_({.m = tokens_, .n = channels_, .k = vocab}, d_logits_, w[2], d_narrow_);
  products_({.a_transposed = true, .m = vocab, .n = channels_, .k = tokens_, .adds = true},
            d_logits_,
            final_ln_.out,
            g[2]);
  space_.zero(d_residual_, tokens_ * channels_ * sizeof(T));
  layernorm_backward(residual_.back(), final_ln_, w[0], g[0], g[1]);
}

// --- What units are made of

// y = x weightᵀ, without the bias, which is added where y is read next.
template <class T>
void DeviceGpt<T>::linear(std::size_t out, std::size_t in, T const* x, T const* weight, T* y) {
  products_({.b_transposed = true, .m = tokens_, .n = out, .k = in}, x, weight, y);
}

template <class T>
void DeviceGpt<T>::linear_backward(std::size_t out,
                                   std::size_t in,
                                   T const* d_out,
                                   T const* x,
                                   T const* weight,
                                   T* d_x,
                                   T* d_weight,
                                   T* d_bias) {
  products_({.m = tokens_, .n = in, .k = out}, d_out, weight, d_x);
  products_(
      {.a_transposed = true, .m = out, .n = in, .k = tokens_, .adds = true}, d_out, x, d_weight);
  add_column_sums(kernels::OfRows<T>{d_out}, out, d_bias);
}

template <class T>
void DeviceGpt<T>::layernorm(T const* x, T const* gain, T const* bias, LayerNorm const& norm) {
  launch<kernels::normalize<T>>("normalize",
                                tokens_ * kernels::warp,
                                x,
                                gain,
                                bias,
                                norm.mean,
                                norm.rdev,
                                norm.out,
                                tokens_,
                                channels_);
}

// Of the output's gradient in d_narrow_; adds to d_residual_.
template <class T>
void DeviceGpt<T>::layernorm_backward(
    T const* x, LayerNorm const& norm, T const* gain, T* d_gain, T* d_bias) {
  add_column_sums(kernels::OfNormalRows<T>{d_narrow_, x, norm.mean, norm.rdev}, channels_, d_gain);
  add_column_sums(kernels::OfRows<T>{d_narrow_}, channels_, d_bias);
  launch<kernels::normalize_backward<T>>("normalize_backward",
                                         tokens_ * kernels::warp,
                                         d_narrow_,
                                         x,
                                         gain,
                                         norm.mean,
                                         norm.rdev,
                                         d_residual_,
                                         tokens_,
                                         channels_);
}

template <class T>
template <class Term>
void DeviceGpt<T>::add_column_sums(Term const& term, std::size_t columns, T* gradient) {
  std::size_t const chunks = kernels::chunks_of(tokens_);
  launch<kernels::sum_chunks<T, Term>>(
      "sum_chunks", chunks * columns / kernels::width<T>, term, column_sums_, tokens_, columns);
  launch<kernels::add_chunks<T>>("add_chunks", columns, column_sums_, gradient, chunks, columns);
}

// Per head: p = softmax(q kᵀ / √head_size) over the keys at or before the query, out = p v.
template <class T>
void DeviceGpt<T>::attention_forward(Block const& block, T const* bias) {
  auto const heads = static_cast<std::size_t>(config_.heads);
  std::size_t const size = channels_ / heads;
  std::size_t const matrices = batch_ * heads;
  std::size_t const part = tokens_ * channels_;
  T const* const q = block.heads;
  T const* const k = q + part;
  T const* const v = k + part;
  kernels::Heads const shape{3, batch_, heads, length_, size};
  launch<kernels::split_heads<T>>(
      "split_heads", 3 * part / kernels::width<T>, shape, d_wide_, bias, block.heads);
  products_({.b_transposed = true, .m = length_, .n = length_, .k = size, .batch = matrices},
            q,
            k,
            block.scores);
  launch<kernels::causal_softmax<T>>("causal_softmax",
                                     matrices * length_ * kernels::warp,
                                     block.scores,
                                     1.f / std::sqrt(static_cast<float>(size)),
                                     matrices * length_,
                                     length_);
  products_({.m = length_, .n = size, .k = length_, .batch = matrices}, block.scores, v, d_narrow_);
  launch<kernels::join_heads<T>>("join_heads",
                                 part / kernels::width<T>,
                                 kernels::Heads{1, batch_, heads, length_, size},
                                 d_narrow_,
                                 block.attended);
}

// From the output's gradient in d_narrow_ to that of queries, keys and values in d_wide_.
template <class T>
void DeviceGpt<T>::attention_backward(Block const& block) {
  auto const heads = static_cast<std::size_t>(config_.heads);
  std::size_t const size = channels_ / heads;
  std::size_t const matrices = batch_ * heads;
  std::size_t const part = tokens_ * channels_;
  T const* const q = block.heads;
  T const* const k = q + part;
  T const* const v = k + part;
  T* const d_q = d_heads_;
  T* const d_k = d_q + part;
  T* const d_v = d_k + part;
  T* const d = d_v + part;
  T const* const none = nullptr;
  launch<kernels::split_heads<T>>("split_heads",
                                  part / kernels::width<T>,
                                  kernels::Heads{1, batch_, heads, length_, size},
                                  d_narrow_,
                                  none,
                                  d);
  Product const by_keys{.m = length_, .n = size, .k = length_, .batch = matrices};
  Product by_queries = by_keys;
  by_queries.a_transposed = true;
  products_(by_queries, block.scores, d, d_v);
  products_({.b_transposed = true, .m = length_, .n = length_, .k = size, .batch = matrices},
            d,
            v,
            d_scores_);
  launch<kernels::causal_softmax_backward<T>>("causal_softmax_backward",
                                              matrices * length_ * kernels::warp,
                                              block.scores,
                                              d_scores_,
                                              1.f / std::sqrt(static_cast<float>(size)),
                                              matrices * length_,
                                              length_);
  products_(by_keys, d_scores_, k, d_q);
  products_(by_queries, d_scores_, q, d_k);
  launch<kernels::join_heads<T>>("join_heads",
                                 3 * part / kernels::width<T>,
                                 kernels::Heads{3, batch_, heads, length_, size},
                                 d_heads_,
                                 d_wide_);
}

template class DeviceGpt<float>;
template class DeviceGpt<zero::bf16>;

}  // namespace gpt
