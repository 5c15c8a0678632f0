/// @file
/// What a GPT computes beside products of matrices. Elements are `T`, numbers are fp32, and every
/// sum has one order, which depends on sizes alone: no atomics, so that two runs have the same
/// bits.
///
/// Matrices are whole and row-major, and rows are multiples of 16 bytes, in which they are read.
#pragma once

#include "numbers.hpp"
#include "tensors.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/vector.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace gpt::kernels {

using zero::device::grid_thread;
using zero::device::grid_threads;

/// Neighbouring elements that are read at once.
template <class T>
inline constexpr std::size_t width = zero::device::access_bytes / sizeof(T);
template <class T>
using Pack = zero::device::Vector<T, width<T>>;

template <class T>
__device__ Pack<T> load(T const* from, std::size_t at) {
  return zero::device::load<width<T>>(from, at);
}
/// Stores value(k), rounded, to the elements at + k.
template <class T, class F>
__device__ void store(T* to, std::size_t at, F const& value) {
  Pack<T> pack;
  for (unsigned k = 0; k < width<T>; ++k) pack.values[k] = T(value(k));
  zero::device::store<width<T>>(to, at, pack);
}
template <class T>
__device__ float number(Pack<T> const& pack, unsigned k) {
  return static_cast<float>(pack.values[k]);
}

// A warp has a row at a time.
inline constexpr unsigned warp = 32;
inline __device__ unsigned lane() { return threadIdx.x % warp; }
inline __device__ std::size_t first_row() { return grid_thread() / warp; }
inline __device__ std::size_t rows_at_once() { return grid_threads() / warp; }

/// Of the values of a warp's lanes, the same bits in each: f is commutative.
template <class F>
__device__ float over_lanes(float value, F const& f) {
  for (unsigned distance = warp / 2; distance > 0; distance /= 2) {
    value = f(value, __shfl_xor_sync(~0u, value, static_cast<int>(distance)));
  }
  return value;
}
inline __device__ float sum_of_lanes(float value) {
  return over_lanes(value, [](float a, float b) { return a + b; });
}
inline __device__ float top_of_lanes(float value) {
  return over_lanes(value, [](float a, float b) { return fmaxf(a, b); });
}

/// Calls visit(at) for every pack of a row that this lane has.
template <class T, class F>
__device__ void for_own_packs(std::size_t columns, F const& visit) {
  for (std::size_t at = lane() * width<T>; at < columns; at += warp * width<T>) visit(at);
}

// --- Embedding

template <class T>
ZERO_KERNEL embed(std::uint8_t const* bytes,
                  T const* wte,
                  T const* wpe,
                  T* out,
                  std::size_t tokens,
                  std::size_t length,
                  std::size_t channels) {
  for (std::size_t i = grid_thread() * width<T>; i < tokens * channels;
       i += grid_threads() * width<T>) {
    std::size_t const token = i / channels;
    std::size_t const at = i % channels;
    auto const byte = load(wte, bytes[token] * channels + at);
    auto const position = load(wpe, token % length * channels + at);
    store(out, i, [&](unsigned k) { return number(byte, k) + number(position, k); });
  }
}

/// Rows with a 1 in the column of their byte. Its transpose times gradients adds up those of each
/// byte, in the order of a product.
template <class T>
ZERO_KERNEL one_hot(std::uint8_t const* bytes, T* out, std::size_t tokens) {
  constexpr std::size_t vocab = Config::vocab;
  for (std::size_t i = grid_thread() * width<T>; i < tokens * vocab;
       i += grid_threads() * width<T>) {
    std::size_t const byte = bytes[i / vocab];
    store(out, i, [&](unsigned k) { return byte == i % vocab + k ? 1.f : 0.f; });
  }
}

template <class T>
ZERO_KERNEL add_positions(T const* d, T* gradient, std::size_t count, std::size_t size) {
  for (std::size_t i = grid_thread() * width<T>; i < size; i += grid_threads() * width<T>) {
    float sums[width<T>] = {};
    for (std::size_t at = i; at < count; at += size) {
      auto const part = load(d, at);
      for (unsigned k = 0; k < width<T>; ++k) sums[k] += number(part, k);
    }
    auto const before = load(gradient, i);
    store(gradient, i, [&](unsigned k) { return number(before, k) + sums[k]; });
  }
}

// --- Layer norm

template <class T>
ZERO_KERNEL normalize(T const* x,
                      T const* gain,
                      T const* bias,
                      float* mean,
                      float* rdev,
                      T* out,
                      std::size_t rows,
                      std::size_t channels) {
  auto const size = static_cast<float>(channels);
  for (std::size_t i = first_row(); i < rows; i += rows_at_once()) {
    T const* const row = x + i * channels;
    float sum = 0.f;
    for_own_packs<T>(channels, [&](std::size_t at) {
      auto const pack = load(row, at);
      for (unsigned k = 0; k < width<T>; ++k) sum += number(pack, k);
    });
    float const m = sum_of_lanes(sum) / size;
    float squares = 0.f;
    for_own_packs<T>(channels, [&](std::size_t at) {
      auto const pack = load(row, at);
      for (unsigned k = 0; k < width<T>; ++k) {
        float const centred = number(pack, k) - m;
        squares += centred * centred;
      }
    });
    float const r = 1.f / sqrtf(sum_of_lanes(squares) / size + norm_epsilon<float>);
    for_own_packs<T>(channels, [&](std::size_t at) {
      auto const pack = load(row, at);
      auto const g = load(gain, at);
      auto const b = load(bias, at);
      store(out, i * channels + at, [&](unsigned k) {
        return (number(pack, k) - m) * r * number(g, k) + number(b, k);
      });
    });
    if (lane() == 0) mean[i] = m, rdev[i] = r;
  }
}

/// Adds to d_x, which already holds what flows along the residual stream.
template <class T>
ZERO_KERNEL normalize_backward(T const* d_out,
                               T const* x,
                               T const* gain,
                               float const* mean,
                               float const* rdev,
                               T* d_x,
                               std::size_t rows,
                               std::size_t channels) {
  auto const size = static_cast<float>(channels);
  for (std::size_t i = first_row(); i < rows; i += rows_at_once()) {
    float const m = mean[i];
    float const r = rdev[i];
    float sum = 0.f;
    float sum_normal = 0.f;
    for_own_packs<T>(channels, [&](std::size_t at) {
      auto const d = load(d_out, i * channels + at);
      auto const pack = load(x, i * channels + at);
      auto const g = load(gain, at);
      for (unsigned k = 0; k < width<T>; ++k) {
        float const part = number(d, k) * number(g, k);
        sum += part;
        sum_normal += part * ((number(pack, k) - m) * r);
      }
    });
    float const d_mean = sum_of_lanes(sum) / size;
    float const d_normal = sum_of_lanes(sum_normal) / size;
    for_own_packs<T>(channels, [&](std::size_t at) {
      auto const d = load(d_out, i * channels + at);
      auto const pack = load(x, i * channels + at);
      auto const g = load(gain, at);
      auto const before = load(d_x, i * channels + at);
      store(d_x, i * channels + at, [&](unsigned k) {
        float const normal = (number(pack, k) - m) * r;
        return number(before, k) + (number(d, k) * number(g, k) - d_mean - normal * d_normal) * r;
      });
    });
  }
}

// --- Sums of columns: the gradients of biases and gains

/// The gradients of a row, for a bias.
template <class T>
struct OfRows {
  T const* d;

  __device__ void add(float (&sums)[width<T>], std::size_t i, std::size_t /*row*/) const {
    auto const pack = load(d, i);
    for (unsigned k = 0; k < width<T>; ++k) sums[k] += number(pack, k);
  }
};

/// The same times what a layer norm has made of its input, for a gain.
template <class T>
struct OfNormalRows {
  T const* d;
  T const* x;
  float const* mean;
  float const* rdev;

  __device__ void add(float (&sums)[width<T>], std::size_t i, std::size_t row) const {
    auto const pack = load(d, i);
    auto const input = load(x, i);
    for (unsigned k = 0; k < width<T>; ++k) {
      sums[k] += number(pack, k) * ((number(input, k) - mean[row]) * rdev[row]);
    }
  }
};

/// Rows that one thread adds: so many that there are at most 128 sums of a column, of 16 rows or
/// more.
[[nodiscard]] inline __host__ __device__ std::size_t rows_of_chunk(std::size_t rows) {
  return std::max<std::size_t>(16, (rows + 127) / 128);
}
[[nodiscard]] inline __host__ __device__ std::size_t chunks_of(std::size_t rows) {
  return (rows + rows_of_chunk(rows) - 1) / rows_of_chunk(rows);
}

template <class T, class Term>
ZERO_KERNEL sum_chunks(Term term, float* sums, std::size_t rows, std::size_t columns) {
  std::size_t const chunk = rows_of_chunk(rows);
  for (std::size_t i = grid_thread() * width<T>; i < chunks_of(rows) * columns;
       i += grid_threads() * width<T>) {
    std::size_t const first = i / columns * chunk;
    std::size_t const last = std::min(first + chunk, rows);
    float own[width<T>] = {};
    for (std::size_t row = first; row < last; ++row) {
      term.add(own, row * columns + i % columns, row);
    }
    for (unsigned k = 0; k < width<T>; ++k) sums[i + k] = own[k];
  }
}

template <class T>
ZERO_KERNEL add_chunks(float const* sums, T* gradient, std::size_t chunks, std::size_t columns) {
  for (std::size_t i = grid_thread(); i < columns; i += grid_threads()) {
    float sum = 0.f;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) sum += sums[chunk * columns + i];
    gradient[i] = T(static_cast<float>(gradient[i]) + sum);
  }
}

// --- What comes after a product

/// out = x + (product + bias), by rows.
template <class T>
ZERO_KERNEL add_to_residual(
    T const* product, T const* bias, T const* x, T* out, std::size_t count, std::size_t columns) {
  for (std::size_t i = grid_thread() * width<T>; i < count; i += grid_threads() * width<T>) {
    auto const p = load(product, i);
    auto const b = load(bias, i % columns);
    auto const before = load(x, i);
    store(out, i, [&](unsigned k) { return number(p, k) + number(b, k) + number(before, k); });
  }
}

inline __device__ float gelu_tanh(float x) {
  return tanhf(gelu_slope<float> * x * (1.f + gelu_cubic<float> * x * x));
}

/// Adds the bias to `hidden`, and leaves its GELU in `active`.
template <class T>
ZERO_KERNEL gelu(T* hidden, T const* bias, T* active, std::size_t count, std::size_t columns) {
  for (std::size_t i = grid_thread() * width<T>; i < count; i += grid_threads() * width<T>) {
    auto const before = load(hidden, i);
    auto const b = load(bias, i % columns);
    Pack<T> x;
    for (unsigned k = 0; k < width<T>; ++k) x.values[k] = T(number(before, k) + number(b, k));
    zero::device::store<width<T>>(hidden, i, x);
    store(active, i, [&](unsigned k) {
      return 0.5f * number(x, k) * (1.f + gelu_tanh(number(x, k)));
    });
  }
}

/// Turns the gradient of the output into that of the input.
template <class T>
ZERO_KERNEL gelu_backward(T const* hidden, T* d, std::size_t count) {
  for (std::size_t i = grid_thread() * width<T>; i < count; i += grid_threads() * width<T>) {
    auto const input = load(hidden, i);
    auto const output = load(d, i);
    store(d, i, [&](unsigned k) {
      float const x = number(input, k);
      float const t = gelu_tanh(x);
      float const slope = gelu_slope<float> * (1.f + 3.f * gelu_cubic<float> * x * x);
      return number(output, k) * (0.5f * (1.f + t + x * (1.f - t * t) * slope));
    });
  }
}

// --- Attention

/// Rows of tokens, each of `parts` times `heads` pieces of `head_size`; and the same head by head,
/// [parts, batch, heads, length, head_size], so that every head is a matrix.
struct Heads {
  std::size_t parts, batch, heads, length, head_size;

  [[nodiscard]] __host__ __device__ std::size_t columns() const {
    return parts * heads * head_size;
  }
  [[nodiscard]] __host__ __device__ std::size_t count() const { return batch * length * columns(); }
  /// Where an element of the rows is head by head.
  [[nodiscard]] __device__ std::size_t by_head(std::size_t i) const {
    std::size_t const token = i / columns();
    std::size_t const column = i % columns();
    std::size_t const head = column / head_size;  // of all parts
    std::size_t const matrix = (head / heads * batch + token / length) * heads + head % heads;
    return (matrix * length + token % length) * head_size + column % head_size;
  }
};

/// @param bias  is added to every row; may be null
template <class T>
ZERO_KERNEL split_heads(Heads shape, T const* rows, T const* bias, T* heads) {
  for (std::size_t i = grid_thread() * width<T>; i < shape.count();
       i += grid_threads() * width<T>) {
    auto const row = load(rows, i);
    auto const b = bias == nullptr ? Pack<T>{} : load(bias, i % shape.columns());
    store(heads, shape.by_head(i), [&](unsigned k) { return number(row, k) + number(b, k); });
  }
}

template <class T>
ZERO_KERNEL join_heads(Heads shape, T const* heads, T* rows) {
  for (std::size_t i = grid_thread() * width<T>; i < shape.count();
       i += grid_threads() * width<T>) {
    zero::device::store<width<T>>(rows, i, load(heads, shape.by_head(i)));
  }
}

/// In each row, p = softmax(scale p) over the keys at or before the query, and 0 behind it.
template <class T>
ZERO_KERNEL causal_softmax(T* p, float scale, std::size_t rows, std::size_t length) {
  for (std::size_t i = first_row(); i < rows; i += rows_at_once()) {
    T* const row = p + i * length;
    std::size_t const seen = i % length + 1;
    float top = -INFINITY;
    for_own_packs<T>(seen, [&](std::size_t at) {
      auto const pack = load(row, at);
      for (unsigned k = 0; k < width<T> && at + k < seen; ++k) top = fmaxf(top, number(pack, k));
    });
    top = top_of_lanes(top);
    float sum = 0.f;
    for_own_packs<T>(seen, [&](std::size_t at) {
      auto const pack = load(row, at);
      for (unsigned k = 0; k < width<T> && at + k < seen; ++k) {
        sum += expf((number(pack, k) - top) * scale);
      }
    });
    float const share = 1.f / sum_of_lanes(sum);
    for_own_packs<T>(length, [&](std::size_t at) {
      auto const pack = load(row, at);
      store(row, at, [&](unsigned k) {
        return at + k < seen ? expf((number(pack, k) - top) * scale) * share : 0.f;
      });
    });
  }
}

/// Turns the gradients of rows of p into those of the scores. p is zero for unseen keys, and so is
/// the gradient.
template <class T>
ZERO_KERNEL causal_softmax_backward(
    T const* p, T* d, float scale, std::size_t rows, std::size_t length) {
  for (std::size_t i = first_row(); i < rows; i += rows_at_once()) {
    float sum = 0.f;
    for_own_packs<T>(length, [&](std::size_t at) {
      auto const share = load(p, i * length + at);
      auto const part = load(d, i * length + at);
      for (unsigned k = 0; k < width<T>; ++k) sum += number(share, k) * number(part, k);
    });
    float const mean = sum_of_lanes(sum);
    for_own_packs<T>(length, [&](std::size_t at) {
      auto const share = load(p, i * length + at);
      auto const part = load(d, i * length + at);
      store(d, i * length + at, [&](unsigned k) {
        return number(share, k) * (number(part, k) - mean) * scale;
      });
    });
  }
}

// --- Cross-entropy

/// What the softmax of a row of scores is made of: exp(score - top) / sum.
struct Softmax {
  float* top;
  float* sum;
};

template <class Score>
ZERO_KERNEL cross_entropy(Score const* scores,
                          std::uint8_t const* targets,
                          Softmax softmax,
                          float* losses,
                          std::size_t tokens) {
  constexpr std::size_t vocab = Config::vocab;
  for (std::size_t i = first_row(); i < tokens; i += rows_at_once()) {
    Score const* const row = scores + i * vocab;
    float top = -INFINITY;
    for (std::size_t v = lane(); v < vocab; v += warp) top = fmaxf(top, row[v]);
    top = top_of_lanes(top);
    float sum = 0.f;
    for (std::size_t v = lane(); v < vocab; v += warp) sum += expf(row[v] - top);
    sum = sum_of_lanes(sum);
    if (lane() == 0) {
      softmax.top[i] = top;
      softmax.sum[i] = sum;
      losses[i] = logf(sum) + top - row[targets[i]];
    }
  }
}

/// d = share (softmax - one-hot), by rows.
template <class T>
ZERO_KERNEL cross_entropy_backward(float const* scores,
                                   std::uint8_t const* targets,
                                   Softmax softmax,
                                   float share,
                                   T* d,
                                   std::size_t tokens) {
  constexpr std::size_t vocab = Config::vocab;
  for (std::size_t i = grid_thread() * width<T>; i < tokens * vocab;
       i += grid_threads() * width<T>) {
    std::size_t const token = i / vocab;
    float const factor = share / softmax.sum[token];
    store(d, i, [&](unsigned k) {
      float const part = expf(scores[i + k] - softmax.top[token]) * factor;
      return targets[token] == i % vocab + k ? part - share : part;
    });
  }
}

/// Adds the mean of the losses to *total: one block.
template <class Loss>
ZERO_KERNEL add_mean(Loss const* losses, std::size_t count, double* total) {
  __shared__ double sums[zero::device::block_threads];
  double own = 0.;
  for (std::size_t i = threadIdx.x; i < count; i += blockDim.x) {
    own += static_cast<double>(losses[i]);
  }
  sums[threadIdx.x] = own;
  for (unsigned half = zero::device::block_threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x != 0) return;
  *total += static_cast<double>(static_cast<float>(sums[0] / static_cast<double>(count)));
}

}  // namespace gpt::kernels
