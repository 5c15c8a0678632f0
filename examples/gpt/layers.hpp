/// @file
/// What the model is made of, forward and backward: linear, layer norm, GELU, attention. Included
/// by model.cpp alone, so that only one file pays for Eigen.
#pragma once

#include "model.hpp"
#include "numbers.hpp"

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

using Eigen::Index;

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

// out = x weightᵀ + bias, one row per token. Where a rank has some rows of the weight and of the
// bias, it gets as many columns of `out` from the whole of x (column-parallel, for Megatron-LM
// writes matrices the other way round).
template <class Real>
void linear_forward(
    Index tokens, Buffer<Real>& x, Buffer<Real>& weight, Buffer<Real>& bias, Buffer<Real>& out) {
  auto const b = vector(bias);
  auto const w = matrix(weight, b.size(), vector(weight).size() / b.size());
  auto y = matrix(out, tokens, w.rows());
  y.noalias() = matrix(x, tokens, w.cols()) * w.transpose();
  y.rowwise() += b;
}

// The same where each rank has some columns of the weight and of x, and all of the bias
// (row-parallel): the bias is added once, to the sum of the products.
template <class Real>
void row_parallel_forward(Index tokens,
                          Buffer<Real>& x,
                          Buffer<Real>& weight,
                          Buffer<Real>& bias,
                          Buffer<Real>& out,
                          ModelGroup const& group) {
  auto const b = vector(bias);
  auto const w = matrix(weight, b.size(), vector(weight).size() / b.size());
  auto y = matrix(out, tokens, w.rows());
  y.noalias() = matrix(x, tokens, w.cols()) * w.transpose();
  group.all_reduce(std::span(out).first(static_cast<std::size_t>(y.size())));
  y.rowwise() += b;
}

// Of either. After a column-parallel layer, d_x is this rank's part of a sum over the group; after
// a row-parallel one it is complete, and so is d_bias.
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
  auto const g = vector(gain);
  auto const b = vector(bias);
  auto const rows = matrix(x, tokens, g.size());
  auto y = matrix(norm.out, tokens, g.size());
  auto mean = vector(norm.mean);
  auto rdev = vector(norm.rdev);
  for (Index i = 0; i < tokens; ++i) {
    auto const row = rows.row(i).array();
    mean[i] = row.mean();
    rdev[i] = Real(1) / std::sqrt((row - mean[i]).square().mean() + norm_epsilon<Real>);
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

inline AttentionShape attention_shape(int batch,
                                      int length,
                                      Config const& config,
                                      ModelRank const& of) {
  return {batch, length, config.heads / of.size, config.channels / config.heads};
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

}  // namespace gpt
