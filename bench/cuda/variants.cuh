/// @file
/// Other ways to write kernels of the library whose first figures on a GPU were slow, to be
/// measured beside those that it ships. All have the same bits.
#pragma once

#include "zero/base/exact_sum.hpp"
#include "zero/device/addends.hpp"
#include "zero/device/buffers.hpp"
#include "zero/device/element.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/norm.cuh"
#include "zero/device/squares.hpp"
#include "zero/device/sum.cuh"
#include "zero/device/update.cuh"
#include "zero/device/vector.hpp"
#include "zero/rule/adamw.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace bench::variants {

namespace device = zero::device;
namespace kernels = zero::device::kernels;
using device::block_threads;
using device::Cut;
using device::Queue;
using device::Vector;
using zero::ExactSum;

/// Bytes of a vector.
template <class T>
inline constexpr std::size_t width_of = device::access_bytes / sizeof(T);

// AdamW.

/// What an update is told.
template <class P>
struct Update {
  zero::AdamW rule;
  zero::StepTerms const* terms;
  zero::StepScalars const* scalars;
  zero::UpdateArrays<float, P, P, float, 2> arrays;
  Cut cut;
};

/// As the library's first version: as many blocks as the device runs at once, a vector for each
/// thread, and the next one asked for once the one before is stored.
template <class P>
ZERO_KERNEL update_resident(Update<P> const work) {
  constexpr std::size_t width = width_of<float>;
  kernels::UpdateOrder const aligned{work.cut.apart};
  kernels::UpdateInput<width, float, P, P, float, 2> input{};
  std::size_t i = device::grid_thread();
  auto const load = [&] {
    if (i < work.cut.vectors) input.load(work.arrays, work.cut.head + i * width, aligned);
  };
  load();
  __syncwarp();
  auto const gradient_scale = static_cast<float>(work.terms->gradient_scale);
  zero::StepScalars const scalars = *work.scalars;
  if (work.terms->skipped != 0) return;
  while (i < work.cut.vectors) {
    std::size_t const at = work.cut.head + i * width;
    auto const published = kernels::update_vector(work.rule, scalars, gradient_scale, input);
    input.store(work.arrays, at, aligned, published);
    i += device::grid_threads();
    load();
  }
}

/// A block for each tile, as the library's, with another number of vectors for each thread.
template <unsigned vectors, class P>
ZERO_KERNEL update_tiles(Update<P> const work) {
  constexpr std::size_t width = width_of<float>;
  kernels::UpdateOrder const aligned{work.cut.apart};
  std::size_t const tile = static_cast<std::size_t>(blockIdx.x) * vectors * block_threads;
  auto const vector = [&](unsigned v) { return tile + v * block_threads + threadIdx.x; };
  kernels::UpdateInput<width, float, P, P, float, 2> inputs[vectors]{};
#pragma unroll
  for (unsigned v = 0; v < vectors; ++v) {
    if (vector(v) >= work.cut.vectors) break;
    inputs[v].load(work.arrays, work.cut.head + vector(v) * width, aligned);
  }
  __syncwarp();
  auto const gradient_scale = static_cast<float>(work.terms->gradient_scale);
  zero::StepScalars const scalars = *work.scalars;
  if (work.terms->skipped != 0) return;
#pragma unroll
  for (unsigned v = 0; v < vectors; ++v) {
    if (vector(v) >= work.cut.vectors) break;
    std::size_t const at = work.cut.head + vector(v) * width;
    auto const published = kernels::update_vector(work.rule, scalars, gradient_scale, inputs[v]);
    inputs[v].store(work.arrays, at, aligned, published);
  }
}

/// Whole vectors from where the arrays are aligned to 16 bytes, wherever their lines begin.
template <class P>
[[nodiscard]] Cut cut_at_vectors(zero::UpdateArrays<float, P, P, float, 2> const& arrays) {
  std::size_t const width = width_of<float>;
  std::size_t const past = reinterpret_cast<std::uintptr_t>(arrays.master) / sizeof(float) % width;
  std::size_t const head = (width - past) % width;
  return {.head = head, .vectors = (arrays.count - head) / width};
}

template <class P>
[[nodiscard]] cudaError_t try_update_resident(Queue const& queue, Update<P> const& work) {
  return device::try_launch_over<update_resident<P>>(queue, work.cut.vectors, work);
}
template <unsigned vectors, class P>
[[nodiscard]] cudaError_t try_update_tiles(Queue const& queue, Update<P> const& work) {
  return device::try_launch_tiles<update_tiles<vectors, P>>(
      queue, 1, work.cut.vectors, vectors * block_threads, work);
}

// The norm, and sums with it, of whole blocks.

/// A warp for each block of the norm: four times as many threads ask for elements, and eight of
/// each warp then add. `read(i, values)` gives elements 4 (32 k + lane) and the three that follow
/// of block i, for k = 0 to 3.
template <class Read>
__device__ inline void add_by_warps(ExactSum* sum, std::size_t count, Read const& read) {
  constexpr unsigned warp = device::warp_threads;
  constexpr unsigned warps = block_threads / warp;
  constexpr auto elements = static_cast<unsigned>(zero::block);
  __shared__ float of_blocks[warps][elements];
  __shared__ device::Addends of_warps[warps];
  unsigned const own = threadIdx.x / warp;
  unsigned const lane = threadIdx.x % warp;
  auto* const total = reinterpret_cast<unsigned long long*>(sum->accumulators());
  auto const put = [total](unsigned word, std::int64_t part) {
    atomicAdd(total + word, static_cast<unsigned long long>(part));
  };
  device::Addends added{};
  std::size_t const stride = device::grid_threads() / warp;
  for (std::size_t i = device::grid_thread() / warp; i < count / zero::block; i += stride) {
    Vector<float, 4> values[elements / 4 / warp];
    read(i, values);
    for (unsigned k = 0; k < elements / 4 / warp; ++k) {
      device::store<4>(of_blocks[own], 4 * (k * warp + lane), values[k]);
    }
    __syncwarp();
    if (lane < device::team) {
      double squares = 0.;
#pragma unroll 16
      for (unsigned at = lane; at < elements; at += device::team) {
        squares += device::square(of_blocks[own][at]);
      }
      auto const exchange = [](double value, unsigned distance) {
        return __shfl_xor_sync(
            0xffu, value, static_cast<int>(distance), static_cast<int>(device::team));
      };
      double const whole = device::team_sum(squares, exchange);
      if (lane == 0) added.add(ExactSum::addend(whole), put);
    }
    __syncwarp();
  }
  if (lane == 0) of_warps[own] = added;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / warp; ++w) added.add(of_warps[w], put);
  added.put_out(put);
}

ZERO_KERNEL norm_by_warps(ExactSum* sum, float const* x, std::size_t count) {
  add_by_warps(sum, count, [&](std::size_t i, auto& values) {
    unsigned k = 0;
    for (auto& vector : values) {
      std::size_t const at = 4 * (k++ * device::warp_threads + threadIdx.x % device::warp_threads);
      vector = device::load<4>(x + i * zero::block, at);
    }
  });
}

/// Four sources of floats, and where their sums go.
struct Sources {
  float const* at[4];
  float* target;
};

ZERO_KERNEL sum_and_square_by_warps(Sources const of, ExactSum* sum, std::size_t count) {
  add_by_warps(sum, count, [&](std::size_t i, auto& values) {
    auto const place = [&](std::size_t k) {
      return i * zero::block + 4 * (k * device::warp_threads + threadIdx.x % device::warp_threads);
    };
    device::sum_vectors<float, 4>(
        [&](int rank, std::size_t k) { return device::load<4>(of.at[rank], place(k)); }, 4, values);
    std::size_t k = 0;
    for (auto const& vector : values) device::store<4>(of.target, place(k++), vector);
  });
}

/// A team for each block, as the library's, with another number of vectors asked for at once.
template <unsigned abreast, class T>
ZERO_KERNEL norm_by_teams(ExactSum* sum, T const* x, std::size_t count) {
  auto const squares = [&](std::size_t i, unsigned thread, T* shared, auto const& wait) {
    auto const read = [&](auto& loaded, auto const& place) {
#pragma unroll
      for (unsigned k = 0; k < abreast; ++k) {
        loaded[k] = device::load<width_of<T>>(x + i * zero::block, place(k));
      }
    };
    return device::block_squares<abreast>(read, thread, shared, wait);
  };
  kernels::add_blocks<T>(device::grid_part(1), sum, count, squares);
}

/// As the library's first version: what was summed is stored before the next is asked for.
template <class T>
ZERO_KERNEL sum_and_square_at_once(T* target,
                                   device::BufferList const of,
                                   ExactSum* sum,
                                   std::size_t count) {
  constexpr std::size_t width = width_of<T>;
  constexpr unsigned abreast = device::vectors_of<T, device::stage>;
  auto const squares = [&](std::size_t i, unsigned thread, T* shared, auto const& wait) {
    auto const read = [&](auto& loaded, auto const& place) {
#pragma unroll
      for (unsigned k = 0; k < abreast; ++k) {
        std::size_t const at = i * zero::block + place(k);
        Vector<T, width> one[1];
        device::sum_vectors<float, 1>(
            [&](int rank, std::size_t) { return device::load<width>(of.of<T>(rank), at); }, 4, one);
        device::store<width>(target, at, one[0]);
        loaded[k] = one[0];
      }
    };
    return device::block_squares<abreast>(read, thread, shared, wait);
  };
  kernels::add_blocks<T>(device::grid_part(1), sum, count, squares);
}

/// Enqueues a kernel over blocks of the norm, with so many threads for each of them, in thread
/// blocks of full size.
template <auto kernel, class... Arguments>
[[nodiscard]] cudaError_t try_full_blocks(Queue const& queue,
                                          std::size_t items,
                                          Arguments const&... arguments) {
  int resident = 0;
  cudaError_t const status = device::resident_blocks<kernel>(queue.device, resident);
  if (status != cudaSuccess) return status;
  std::size_t const needed = (items + block_threads - 1) / block_threads;
  auto const most = static_cast<std::size_t>(queue.multiprocessors * resident);
  return device::try_launch(
      queue, static_cast<unsigned>((std::min)(needed, most)), block_threads, kernel, arguments...);
}

}  // namespace bench::variants
