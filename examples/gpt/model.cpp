#include "model.hpp"

#include <algorithm>
#include <cmath>

// g++ 12 warns about its own AVX-512 intrinsics wherever they are inlined (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define EIGEN_DONT_PARALLELIZE  // ranks are the parallelism; more threads would fight them
// Else each product takes its two workspaces from malloc; a thread's usual 8 MiB of stack hold
// them.
#define EIGEN_STACK_ALLOCATION_LIMIT (1 << 20)
#include <Eigen/Core>

namespace gpt {

namespace {

using Eigen::Index;

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

template <class Real>
using Matrix = Eigen::Map<Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;
template <class Real>
using Vector = Eigen::Map<Eigen::Matrix<Real, 1, Eigen::Dynamic>>;

template <class Real>
Matrix<Real> matrix(Buffer<Real>& buffer, Index rows, Index columns) {
  return {buffer.data(), rows, columns};
}
template <class Real>
Vector<Real> vector(Buffer<Real>& buffer) {
  return {buffer.data(), static_cast<Index>(buffer.size())};
}

// out = x weightᵀ + bias, one row per token.
template <class Real>
void linear_forward(
    Index tokens, Buffer<Real>& x, Buffer<Real>& weight, Buffer<Real>& bias, Buffer<Real>& out) {
  auto const b = vector(bias);
  auto const w = matrix(weight, b.size(), vector(weight).size() / b.size());
  auto y = matrix(out, tokens, w.rows());
  y.noalias() = matrix(x, tokens, w.cols()) * w.transpose();
  y.rowwise() += b;
}

template <class Real>
void linear_backward(Index tokens,
                     Buffer<Real>& d_out,
                     Buffer<Real>& x,
                     Buffer<Real>& weight,
                     Buffer<Real>& d_x,
                     Buffer<Real>& d_weight,
                     Buffer<Real>& d_bias) {
  auto db = vector(d_bias);
  auto const w = matrix(weight, db.size(), vector(weight).size() / db.size());
  auto const d = matrix(d_out, tokens, w.rows());
  matrix(d_x, tokens, w.cols()).noalias() = d * w;
  matrix(d_weight, w.rows(), w.cols()).noalias() = d.transpose() * matrix(x, tokens, w.cols());
  db.setZero();
  for (Index i = 0; i < tokens; ++i) db += d.row(i);
}

template <class Real>
void layernorm_forward(
    Index tokens, Buffer<Real>& x, Buffer<Real>& gain, Buffer<Real>& bias, LayerNorm<Real>& norm) {
  constexpr Real epsilon = Real(1e-5);
  auto const g = vector(gain);
  auto const b = vector(bias);
  auto const rows = matrix(x, tokens, g.size());
  auto y = matrix(norm.out, tokens, g.size());
  auto mean = vector(norm.mean);
  auto rdev = vector(norm.rdev);
  for (Index i = 0; i < tokens; ++i) {
    auto const row = rows.row(i).array();
    mean[i] = row.mean();
    rdev[i] = Real(1) / std::sqrt((row - mean[i]).square().mean() + epsilon);
    y.row(i).array() = (row - mean[i]) * rdev[i] * g.array() + b.array();
  }
}

// Adds to d_x, which already holds what flows along the residual stream; uses d_out up.
template <class Real>
void layernorm_backward(Index tokens,
                        Buffer<Real>& d_out,
                        Buffer<Real>& x,
                        LayerNorm<Real>& norm,
                        Buffer<Real>& gain,
                        Buffer<Real>& d_x,
                        Buffer<Real>& d_gain,
                        Buffer<Real>& d_bias) {
  auto const g = vector(gain);
  auto const rows = matrix(x, tokens, g.size());
  auto const mean = vector(norm.mean);
  auto const rdev = vector(norm.rdev);
  auto d_rows = matrix(d_out, tokens, g.size());
  auto dg = vector(d_gain);
  auto db = vector(d_bias);
  dg.setZero();
  db.setZero();
  for (Index i = 0; i < tokens; ++i) {
    auto const normal = (rows.row(i).array() - mean[i]) * rdev[i];
    auto d = d_rows.row(i).array();
    db.array() += d;
    dg.array() += d * normal;
    d *= g.array();
    Real const d_mean = d.mean();
    Real const d_normal = (d * normal).mean();
    matrix(d_x, tokens, g.size()).row(i).array() += (d - d_mean - normal * d_normal) * rdev[i];
  }
}

// GPT-2's GELU: x/2 (1 + tanh(u)), u = √(2/π) (x + 0.044715 x³).
template <class Real>
constexpr Real gelu_slope = Real(0.79788456080286535588);
template <class Real>
constexpr Real gelu_cubic = Real(0.044715);

template <class Real>
void gelu_forward(Index count, Buffer<Real>& x, Buffer<Real>& out) {
  auto const v = vector(x).head(count).array();
  vector(out).head(count).array() =
      Real(0.5) * v *
      (Real(1) + (gelu_slope<Real> * v * (Real(1) + gelu_cubic<Real> * v.square())).tanh());
}

// Turns the gradient of the output into that of the input.
template <class Real>
void gelu_backward(Index count, Buffer<Real>& x, Buffer<Real>& scratch, Buffer<Real>& d_in_out) {
  auto const v = vector(x).head(count).array();
  auto scratch_vector = vector(scratch);
  auto t = scratch_vector.head(count).array();
  t = (gelu_slope<Real> * v * (Real(1) + gelu_cubic<Real> * v.square())).tanh();
  vector(d_in_out).head(count).array() *=
      Real(0.5) * (Real(1) + t +
                   v * (Real(1) - t.square()) * gelu_slope<Real> *
                       (Real(1) + Real(3) * gelu_cubic<Real> * v.square()));
}

struct AttentionShape {
  Index batch, length, heads, head_size;
};

AttentionShape attention_shape(int batch, int length, Config const& config) {
  return {batch, length, config.heads, config.channels / config.heads};
}

// The columns of one head in the rows of one sequence, [length, head_size]. Of a matrix that holds
// queries, keys and values side by side, `part` 0, 1 or 2 says which.
template <class Real>
auto head_of(Buffer<Real>& buffer,
             AttentionShape const& shape,
             Index sequence,
             Index head,
             Index parts = 1,
             Index part = 0) {
  Index const stride = parts * shape.heads * shape.head_size;
  Real* const first = buffer.data() + sequence * shape.length * stride +
                      (part * shape.heads + head) * shape.head_size;
  using View =
      Eigen::Map<typename Matrix<Real>::PlainObject, Eigen::Unaligned, Eigen::OuterStride<>>;
  return View{first, shape.length, shape.head_size, Eigen::OuterStride<>(stride)};
}

template <class Real>
Matrix<Real> scores_of(Buffer<Real>& scores,
                       AttentionShape const& shape,
                       Index sequence,
                       Index head) {
  Index const first = (sequence * shape.heads + head) * shape.length * shape.length;
  return {scores.data() + first, shape.length, shape.length};
}

// Per head: p = softmax(q kᵀ / √head_size) over the keys at or before the query, out = p v.
template <class Real>
void attention_forward(AttentionShape const& shape,
                       Buffer<Real>& qkv,
                       Buffer<Real>& scores,
                       Buffer<Real>& out) {
  Real const scale = Real(1) / std::sqrt(static_cast<Real>(shape.head_size));
  for (Index n = 0; n < shape.batch * shape.heads; ++n) {
    Index const sequence = n / shape.heads;
    Index const head = n % shape.heads;
    auto const q = head_of(qkv, shape, sequence, head, 3, 0);
    auto const k = head_of(qkv, shape, sequence, head, 3, 1);
    auto const v = head_of(qkv, shape, sequence, head, 3, 2);
    auto p = scores_of(scores, shape, sequence, head);
    p.noalias() = q * k.transpose();
    for (Index i = 0; i < shape.length; ++i) {
      auto seen = p.row(i).head(i + 1).array();
      Real const top = seen.maxCoeff();
      seen = ((seen - top) * scale).exp();
      seen *= Real(1) / seen.sum();
      p.row(i).tail(shape.length - i - 1).setZero();
    }
    head_of(out, shape, sequence, head).noalias() = p * v;
  }
}

template <class Real>
void attention_backward(AttentionShape const& shape,
                        Buffer<Real>& d_out,
                        Buffer<Real>& qkv,
                        Buffer<Real>& scores,
                        Buffer<Real>& d_scores,
                        Buffer<Real>& d_qkv) {
  Real const scale = Real(1) / std::sqrt(static_cast<Real>(shape.head_size));
  auto dp = matrix(d_scores, shape.length, shape.length);
  for (Index n = 0; n < shape.batch * shape.heads; ++n) {
    Index const sequence = n / shape.heads;
    Index const head = n % shape.heads;
    auto const q = head_of(qkv, shape, sequence, head, 3, 0);
    auto const k = head_of(qkv, shape, sequence, head, 3, 1);
    auto const v = head_of(qkv, shape, sequence, head, 3, 2);
    auto const d = head_of(d_out, shape, sequence, head);
    auto const p = scores_of(scores, shape, sequence, head);
    head_of(d_qkv, shape, sequence, head, 3, 2).noalias() = p.transpose() * d;
    dp.noalias() = d * v.transpose();
    for (Index i = 0; i < shape.length; ++i) {  // p is zero for unseen keys, and so is the gradient
      Real const mean = p.row(i).dot(dp.row(i));
      dp.row(i).array() = p.row(i).array() * (dp.row(i).array() - mean) * scale;
    }
    head_of(d_qkv, shape, sequence, head, 3, 0).noalias() = dp * k;
    head_of(d_qkv, shape, sequence, head, 3, 1).noalias() = dp.transpose() * q;
  }
}

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
