#include "model.hpp"

#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

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
Gpt<Real>::Gpt(Config const& config,
               int max_batch,
               ModelGroup group,
               BlockInputs<Real>* inputs,
               std::pmr::memory_resource* memory)
    : config_(config),
      group_(std::move(group)),
      order_(config, max_batch, group_.place()),
      inputs_of_blocks_(inputs),
      vocab_(slice_of(std::size_t{Config::vocab}, group_.place())) {
  auto const buffer = [memory](std::size_t count) {
    return Buffer<Real>(count, AlignedAllocator<Real>(memory));
  };
  std::vector<std::size_t> largest;  // of the tensors that have the same place in their units
  for (auto const& unit : order_.sizes()) {
    largest.resize(std::max(largest.size(), unit.size()));
    for (std::size_t i = 0; i < unit.size(); ++i) largest[i] = std::max(largest[i], unit[i]);
  }
  for (std::size_t const count : largest) {
    weights_.push_back(buffer(count));
    gradients_.push_back(buffer(count));
  }
  auto const length = static_cast<std::size_t>(config.context);
  auto const tokens = static_cast<std::size_t>(max_batch) * length;
  auto const narrow = tokens * static_cast<std::size_t>(config.channels);
  auto const ranks = static_cast<std::size_t>(group_.place().size);
  auto const own = narrow / ranks;
  auto const wide = own * static_cast<std::size_t>(Config::mlp_ratio);
  auto const scores = tokens * length * static_cast<std::size_t>(config.heads) / ranks;
  auto const layernorm = [&] {
    return LayerNorm<Real>{buffer(tokens), buffer(tokens), buffer(narrow)};
  };
  auto const layers = static_cast<std::size_t>(config.layers);
  std::size_t const held = inputs == nullptr ? layers : std::min(layers, std::size_t{1});
  for (std::size_t layer = 0; layer <= held; ++layer) residual_.push_back(buffer(narrow));
  for (std::size_t layer = 0; layer < held; ++layer) {
    blocks_.push_back({layernorm(),
                       layernorm(),
                       buffer(3 * own),
                       buffer(scores),
                       buffer(own),
                       buffer(narrow),
                       buffer(wide),
                       buffer(wide)});
  }
  final_ln_ = layernorm();
  logits_ = buffer(tokens * vocab_.count);
  d_logits_ = buffer(logits_.size());
  softmax_terms_ = buffer(ranks * 3 * tokens);
  top_ = buffer(tokens);
  sum_ = buffer(tokens);
  next_scores_ = buffer(static_cast<std::size_t>(Config::vocab));
  d_residual_ = buffer(narrow);
  d_narrow_ = buffer(narrow);
  d_wide_ = buffer(wide);
  d_scores_ = buffer(length * length);
}

template <class Real>
void Gpt<Real>::set_batch(std::span<std::uint8_t const> inputs,
                          std::span<std::uint8_t const> targets,
                          int length) {
  order_.set_batch(inputs.size(), targets.size(), length);
  inputs_.assign(inputs.begin(), inputs.end());
  targets_.assign(targets.begin(), targets.end());
}

template <class Real>
void Gpt<Real>::compute_forward(int unit) {
  if (unit == 0) return embedding_forward();
  if (unit == config_.head_unit()) return head_forward();
  auto const layer = static_cast<std::size_t>(unit - 1);
  if (inputs_of_blocks_ != nullptr && !targets_.empty()) {
    inputs_of_blocks_->store(unit - 1, std::span(residual(layer)).first(residual_size()));
  }
  block_forward(layer);
}

template <class Real>
void Gpt<Real>::compute_backward(int unit) {
  if (unit == 0) return embedding_backward();
  if (unit == config_.head_unit()) return head_backward();
  auto const layer = static_cast<std::size_t>(unit - 1);
  if (inputs_of_blocks_ != nullptr) {
    // All of the block, as the paper counts it, though nobody reads its last product.
    std::ranges::copy(inputs_of_blocks_->fetch(unit - 1), residual(layer).begin());
    block_forward(layer);
  }
  block_backward(layer);
}

template <class Real>
void Gpt<Real>::embedding_forward() {
  Index const tokens = std::ssize(inputs_);
  auto const bytes = matrix(weights_[wte], static_cast<Index>(vocab_.count), config_.channels);
  auto const positions = matrix(weights_[wpe], config_.context, config_.channels);
  auto out = matrix(residual_.front(), tokens, config_.channels);
  for (Index i = 0; i < tokens; ++i) {
    Index const row = own_row(inputs_[static_cast<std::size_t>(i)]);
    if (row < 0) {
      out.row(i).setZero();
    } else {
      out.row(i) = bytes.row(row);
    }
  }
  all_reduce(residual_.front());
  for (Index i = 0; i < tokens; ++i) out.row(i) += positions.row(i % order_.length());
}

template <class Real>
void Gpt<Real>::embedding_backward() {
  Index const tokens = std::ssize(inputs_);
  auto d_bytes = matrix(gradients_[wte], static_cast<Index>(vocab_.count), config_.channels);
  auto d_positions = matrix(gradients_[wpe], config_.context, config_.channels);
  auto const d_out = matrix(d_residual_, tokens, config_.channels);
  d_bytes.setZero();
  d_positions.setZero();
  for (Index i = 0; i < tokens; ++i) {
    Index const row = own_row(inputs_[static_cast<std::size_t>(i)]);
    if (row >= 0) d_bytes.row(row) += d_out.row(i);
    d_positions.row(i % order_.length()) += d_out.row(i);
  }
}

template <class Real>
void Gpt<Real>::block_forward(std::size_t layer) {
  Index const tokens = std::ssize(inputs_);
  Index const channels = config_.channels;
  auto& w = weights_;
  auto& x = residual(layer);
  auto& out = residual(layer + 1);
  auto& [ln1, ln2, qkv, scores, attended, middle, hidden, active] = block(layer);

  layernorm_forward(tokens, x, w[ln1_gain], w[ln1_bias], ln1);
  linear_forward(tokens, ln1.out, w[qkv_weight], w[qkv_bias], qkv);
  attention_forward(attention_shape(order_.batch(), order_.length(), config_, group_.place()),
                    qkv,
                    scores,
                    attended);
  row_parallel_forward(tokens, attended, w[proj_weight], w[proj_bias], middle, group_);
  matrix(middle, tokens, channels) += matrix(x, tokens, channels);

  layernorm_forward(tokens, middle, w[ln2_gain], w[ln2_bias], ln2);
  linear_forward(tokens, ln2.out, w[fc_weight], w[fc_bias], hidden);
  gelu_forward(tokens * own_channels() * Config::mlp_ratio, hidden, active);
  row_parallel_forward(tokens, active, w[fc_proj_weight], w[fc_proj_bias], out, group_);
  matrix(out, tokens, channels) += matrix(middle, tokens, channels);
}

// d_residual_ arrives as the gradient of the block's output and leaves as that of its input.
template <class Real>
void Gpt<Real>::block_backward(std::size_t layer) {
  Index const tokens = std::ssize(inputs_);
  Index const wide = own_channels() * Config::mlp_ratio;
  auto& w = weights_;
  auto& g = gradients_;
  auto& x = residual(layer);
  auto& [ln1, ln2, qkv, scores, attended, middle, hidden, active] = block(layer);

  linear_backward(
      tokens, d_residual_, active, w[fc_proj_weight], d_wide_, g[fc_proj_weight], g[fc_proj_bias]);
  gelu_backward(tokens * wide, hidden, active, d_wide_);
  linear_backward(tokens, d_wide_, ln2.out, w[fc_weight], d_narrow_, g[fc_weight], g[fc_bias]);
  all_reduce(d_narrow_);
  layernorm_backward(
      tokens, d_narrow_, middle, ln2, w[ln2_gain], d_residual_, g[ln2_gain], g[ln2_bias]);

  linear_backward(
      tokens, d_residual_, attended, w[proj_weight], d_narrow_, g[proj_weight], g[proj_bias]);
  attention_backward(attention_shape(order_.batch(), order_.length(), config_, group_.place()),
                     d_narrow_,
                     qkv,
                     scores,
                     d_scores_,
                     d_wide_);
  linear_backward(tokens, d_wide_, ln1.out, w[qkv_weight], d_narrow_, g[qkv_weight], g[qkv_bias]);
  all_reduce(d_narrow_);
  layernorm_backward(tokens, d_narrow_, x, ln1, w[ln1_gain], d_residual_, g[ln1_gain], g[ln1_bias]);
}

template <class Real>
void Gpt<Real>::head_forward() {
  Index const tokens = std::ssize(inputs_);
  Index const channels = config_.channels;
  auto const vocab = static_cast<Index>(vocab_.count);
  layernorm_forward(tokens, final_residual(), weights_[lnf_gain], weights_[lnf_bias], final_ln_);
  auto scores = matrix(logits_, tokens, vocab);
  scores.noalias() = matrix(final_ln_.out, tokens, channels) *
                     matrix(weights_[head_weight], vocab, channels).transpose();
  loss_ = Real{};
  if (targets_.empty()) return;

  // Of each rank's part of the vocabulary, per token: the largest score, the sum of exponentials
  // relative to it, and the target's score, which is 0 where another rank has it.
  Index const ranks = group_.place().size;
  auto terms = matrix(softmax_terms_, 3 * ranks, tokens);
  auto own = terms.middleRows(Index{3} * group_.place().rank, 3);
  for (Index i = 0; i < tokens; ++i) {
    auto const row = scores.row(i).array();
    Index const target = own_row(targets_[static_cast<std::size_t>(i)]);
    Real const top = row.maxCoeff();
    own(0, i) = top;
    own(1, i) = (row - top).exp().sum();
    own(2, i) = target < 0 ? Real{} : row[target];
  }
  group_.all_gather(std::span(softmax_terms_).first(static_cast<std::size_t>(terms.size())));
  double total = 0;
  for (Index i = 0; i < tokens; ++i) {
    Real top = terms(0, i);
    for (Index r = 1; r < ranks; ++r) top = std::max(top, terms(3 * r, i));
    Real sum{};
    Real score{};
    for (Index r = 0; r < ranks; ++r) {
      sum += terms(3 * r + 1, i) * std::exp(terms(3 * r, i) - top);
      score += terms(3 * r + 2, i);
    }
    vector(top_)[i] = top;
    vector(sum_)[i] = sum;
    total += static_cast<double>(std::log(sum) + top - score);
  }
  loss_ = static_cast<Real>(total / static_cast<double>(tokens));
  losses_ += static_cast<double>(loss_);
}

template <class Real>
void Gpt<Real>::head_backward() {
  Index const tokens = std::ssize(inputs_);
  Index const channels = config_.channels;
  auto const vocab = static_cast<Index>(vocab_.count);
  auto const scores = matrix(logits_, tokens, vocab);
  auto d = matrix(d_logits_, tokens, vocab);
  Real const share = scale_ / static_cast<Real>(tokens);
  for (Index i = 0; i < tokens; ++i) {  // scale / tokens · (softmax - one-hot)
    Index const target = own_row(targets_[static_cast<std::size_t>(i)]);
    d.row(i).array() = (scores.row(i).array() - vector(top_)[i]).exp();
    d.row(i) *= share / vector(sum_)[i];
    if (target >= 0) d(i, target) -= share;
  }
  matrix(d_narrow_, tokens, channels).noalias() =
      d * matrix(weights_[head_weight], vocab, channels);
  matrix(gradients_[head_weight], vocab, channels).noalias() =
      d.transpose() * matrix(final_ln_.out, tokens, channels);
  all_reduce(d_narrow_);
  matrix(d_residual_, tokens, channels).setZero();
  layernorm_backward(tokens,
                     d_narrow_,
                     final_residual(),
                     final_ln_,
                     weights_[lnf_gain],
                     d_residual_,
                     gradients_[lnf_gain],
                     gradients_[lnf_bias]);
}

template class Gpt<float>;
template class Gpt<double>;

}  // namespace gpt
