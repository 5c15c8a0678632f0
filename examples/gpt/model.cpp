#include "model.hpp"

#include "layers.hpp"

#include <algorithm>
#include <cmath>

namespace gpt {

namespace {

// Order of a unit's tensors; tensors() registers them so.
enum EmbeddingTensor : std::size_t { wte, wpe };
enum BlockTensor : std::size_t {
  ln1_gain,
  ln1_bias,
  qkv_weight,
  qkv_bias,
  proj_weight,
  proj_bias,
  ln2_gain,
  ln2_bias,
  fc_weight,
  fc_bias,
  fc_proj_weight,
  fc_proj_bias
};
enum HeadTensor : std::size_t { lnf_gain, lnf_bias, head_weight };

}  // namespace

template <class Real>
Gpt<Real>::Gpt(Config const& config, int max_batch) : config_(config), max_batch_(max_batch) {
  if (max_batch < 1) throw std::invalid_argument("gpt: max_batch must be positive");
  auto const all = tensors(config);
  sizes_.resize(static_cast<std::size_t>(config.units()));
  for (auto const& tensor : all) {
    sizes_[static_cast<std::size_t>(tensor.unit)].push_back(tensor.numel());
  }
  std::size_t slots = 0;
  for (auto const& unit : sizes_) slots = std::max(slots, unit.size());
  weights_.resize(slots);
  gradients_.resize(slots);
  auto const length = static_cast<std::size_t>(config.context);
  auto const tokens = static_cast<std::size_t>(max_batch) * length;
  auto const narrow = tokens * static_cast<std::size_t>(config.channels);
  auto const wide = narrow * static_cast<std::size_t>(Config::mlp_ratio);
  auto const scores = tokens * length * static_cast<std::size_t>(config.heads);
  auto const layernorm = [&] {
    return LayerNorm<Real>{Buffer<Real>(tokens), Buffer<Real>(tokens), Buffer<Real>(narrow)};
  };
  auto const layers = static_cast<std::size_t>(config.layers);
  residual_.assign(layers + 1, Buffer<Real>(narrow));
  for (std::size_t layer = 0; layer < layers; ++layer) {
    blocks_.push_back({layernorm(),
                       layernorm(),
                       Buffer<Real>(3 * narrow),
                       Buffer<Real>(scores),
                       Buffer<Real>(narrow),
                       Buffer<Real>(narrow),
                       Buffer<Real>(wide),
                       Buffer<Real>(wide)});
  }
  final_ln_ = layernorm();
  logits_.resize(tokens * static_cast<std::size_t>(Config::vocab));
  d_logits_.resize(logits_.size());
  d_residual_.resize(narrow);
  d_narrow_.resize(narrow);
  d_wide_.resize(wide);
  d_scores_.resize(length * length);
}

template <class Real>
void Gpt<Real>::set_batch(std::span<std::uint8_t const> inputs,
                          std::span<std::uint8_t const> targets,
                          int length) {
  if (length < 1 || length > config_.context || inputs.empty() ||
      inputs.size() % static_cast<std::size_t>(length) != 0 ||
      inputs.size() / static_cast<std::size_t>(length) > static_cast<std::size_t>(max_batch_) ||
      (!targets.empty() && targets.size() != inputs.size())) {
    throw std::invalid_argument("gpt: the batch does not fit the model");
  }
  length_ = length;
  batch_ = static_cast<int>(inputs.size()) / length;
  inputs_.assign(inputs.begin(), inputs.end());
  targets_.assign(targets.begin(), targets.end());
  next_forward_ = 0;
  next_backward_ = none;
  used_up_ = false;
}

template <class Real>
void Gpt<Real>::compute_forward(int unit) {
  if (unit == 0) return embedding_forward();
  if (unit == config_.head_unit()) return head_forward();
  block_forward(static_cast<std::size_t>(unit - 1));
}

template <class Real>
void Gpt<Real>::compute_backward(int unit) {
  if (unit == 0) return embedding_backward();
  if (unit == config_.head_unit()) return head_backward();
  block_backward(static_cast<std::size_t>(unit - 1));
}

template <class Real>
void Gpt<Real>::embedding_forward() {
  Index const tokens = std::ssize(inputs_);
  auto const bytes = matrix(weights_[wte], Config::vocab, config_.channels);
  auto const positions = matrix(weights_[wpe], config_.context, config_.channels);
  auto out = matrix(residual_.front(), tokens, config_.channels);
  for (Index i = 0; i < tokens; ++i) {
    out.row(i) = bytes.row(inputs_[static_cast<std::size_t>(i)]) + positions.row(i % length_);
  }
}

template <class Real>
void Gpt<Real>::embedding_backward() {
  Index const tokens = std::ssize(inputs_);
  auto d_bytes = matrix(gradients_[wte], Config::vocab, config_.channels);
  auto d_positions = matrix(gradients_[wpe], config_.context, config_.channels);
  auto const d_out = matrix(d_residual_, tokens, config_.channels);
  d_bytes.setZero();
  d_positions.setZero();
  for (Index i = 0; i < tokens; ++i) {
    d_bytes.row(inputs_[static_cast<std::size_t>(i)]) += d_out.row(i);
    d_positions.row(i % length_) += d_out.row(i);
  }
}

template <class Real>
void Gpt<Real>::block_forward(std::size_t layer) {
  Index const tokens = std::ssize(inputs_);
  Index const channels = config_.channels;
  auto& w = weights_;
  auto& x = residual_[layer];
  auto& out = residual_[layer + 1];
  auto& [ln1, ln2, qkv, scores, attended, middle, hidden, active] = blocks_[layer];

  layernorm_forward(tokens, x, w[ln1_gain], w[ln1_bias], ln1);
  linear_forward(tokens, ln1.out, w[qkv_weight], w[qkv_bias], qkv);
  attention_forward(attention_shape(batch_, length_, config_), qkv, scores, attended);
  linear_forward(tokens, attended, w[proj_weight], w[proj_bias], middle);
  matrix(middle, tokens, channels) += matrix(x, tokens, channels);

  layernorm_forward(tokens, middle, w[ln2_gain], w[ln2_bias], ln2);
  linear_forward(tokens, ln2.out, w[fc_weight], w[fc_bias], hidden);
  gelu_forward(tokens * channels * Config::mlp_ratio, hidden, active);
  linear_forward(tokens, active, w[fc_proj_weight], w[fc_proj_bias], out);
  matrix(out, tokens, channels) += matrix(middle, tokens, channels);
}

// d_residual_ arrives as the gradient of the block's output and leaves as that of its input.
template <class Real>
void Gpt<Real>::block_backward(std::size_t layer) {
  Index const tokens = std::ssize(inputs_);
  Index const wide = Index{config_.channels} * Config::mlp_ratio;
  auto& w = weights_;
  auto& g = gradients_;
  auto& [ln1, ln2, qkv, scores, attended, middle, hidden, active] = blocks_[layer];

  linear_backward(
      tokens, d_residual_, active, w[fc_proj_weight], d_wide_, g[fc_proj_weight], g[fc_proj_bias]);
  gelu_backward(tokens * wide, hidden, active, d_wide_);
  linear_backward(tokens, d_wide_, ln2.out, w[fc_weight], d_narrow_, g[fc_weight], g[fc_bias]);
  layernorm_backward(
      tokens, d_narrow_, middle, ln2, w[ln2_gain], d_residual_, g[ln2_gain], g[ln2_bias]);

  linear_backward(
      tokens, d_residual_, attended, w[proj_weight], d_narrow_, g[proj_weight], g[proj_bias]);
  attention_backward(
      attention_shape(batch_, length_, config_), d_narrow_, qkv, scores, d_scores_, d_wide_);
  linear_backward(tokens, d_wide_, ln1.out, w[qkv_weight], d_narrow_, g[qkv_weight], g[qkv_bias]);
  layernorm_backward(
      tokens, d_narrow_, residual_[layer], ln1, w[ln1_gain], d_residual_, g[ln1_gain], g[ln1_bias]);
}

template <class Real>
void Gpt<Real>::head_forward() {
  Index const tokens = std::ssize(inputs_);
  Index const channels = config_.channels;
  layernorm_forward(tokens, residual_.back(), weights_[lnf_gain], weights_[lnf_bias], final_ln_);
  auto scores = matrix(logits_, tokens, Config::vocab);
  scores.noalias() = matrix(final_ln_.out, tokens, channels) *
                     matrix(weights_[head_weight], Config::vocab, channels).transpose();
  double total = 0;
  for (Index i = 0; i < std::ssize(targets_); ++i) {
    auto const row = scores.row(i).array();
    Real const top = row.maxCoeff();
    Real const sum = (row - top).exp().sum();
    total += static_cast<double>(std::log(sum) + top - row[targets_[static_cast<std::size_t>(i)]]);
  }
  loss_ = targets_.empty() ? Real{} : static_cast<Real>(total / static_cast<double>(tokens));
}

template <class Real>
void Gpt<Real>::head_backward() {
  Index const tokens = std::ssize(inputs_);
  Index const channels = config_.channels;
  auto const scores = matrix(logits_, tokens, Config::vocab);
  auto d = matrix(d_logits_, tokens, Config::vocab);
  Real const share = scale_ / static_cast<Real>(tokens);
  for (Index i = 0; i < tokens; ++i) {  // scale / tokens · (softmax - one-hot)
    d.row(i).array() = (scores.row(i).array() - scores.row(i).maxCoeff()).exp();
    d.row(i) *= share / d.row(i).sum();
    d(i, targets_[static_cast<std::size_t>(i)]) -= share;
  }
  matrix(d_narrow_, tokens, channels).noalias() =
      d * matrix(weights_[head_weight], Config::vocab, channels);
  matrix(gradients_[head_weight], Config::vocab, channels).noalias() =
      d.transpose() * matrix(final_ln_.out, tokens, channels);
  matrix(d_residual_, tokens, channels).setZero();
  layernorm_backward(tokens,
                     d_narrow_,
                     residual_.back(),
                     final_ln_,
                     weights_[lnf_gain],
                     d_residual_,
                     gradients_[lnf_gain],
                     gradients_[lnf_bias]);
}

template class Gpt<float>;
template class Gpt<double>;

}  // namespace gpt
