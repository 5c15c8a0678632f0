/// @file
/// The exact sum of squares: the host's bits, however many threads add.
#pragma once

#include "zero/base/config.hpp"
#include "zero/device/launch.cuh"
#include "zero/device/squares.hpp"
#include "zero/layout/exact_sum.hpp"
#include "zero/layout/placement.hpp"

#include <cub/warp/warp_exchange.cuh>

#include <cstddef>
#include <cstdint>

namespace zero::inline ZERO_NAMESPACE::device {

namespace kernels {

/// Adds a part of a number to a word, in this block's memory or in the device's.
__device__ inline void add_word(unsigned long long* word, long long part) {
  // Two's complement: the same addition as of signed words.
  if (part != 0) atomicAdd(word, static_cast<unsigned long long>(part));
}

/// Not CUB's reductions: cub::WarpReduce adds lanes in another order than MemorySpace says, and
/// cub::DeviceReduce promises none.
///
/// Eight threads share a block of the norm; blocks are added up in shared memory first, since all
/// of them meet in the same few words.
template <class T>
ZERO_KERNEL add_squares(ExactSum* sum, T const* x, std::size_t count) {
  __shared__ unsigned long long words[ExactSum::word_count];
  for (unsigned i = threadIdx.x; i < ExactSum::word_count; i += blockDim.x) words[i] = 0;
  __syncthreads();

  unsigned const thread = threadIdx.x % team;
  unsigned const mask = 0xffu << (threadIdx.x % 32 / team * team);
  auto const exchange = [mask](double value, unsigned distance) {
    return __shfl_xor_sync(mask, value, static_cast<int>(distance), static_cast<int>(team));
  };
  auto const transpose = [](float(&values)[team]) {
    using Exchange = cub::WarpExchange<float, team, team, cub::WARP_EXCHANGE_SHUFFLE>;
    typename Exchange::TempStorage none;
    Exchange(none).BlockedToStriped(values, values);
  };
  bool const aligned = reinterpret_cast<std::uintptr_t>(x) % access_bytes == 0;
  std::size_t const blocks = count / block + (count % block != 0 ? 1 : 0);
  for (std::size_t i = grid_thread() / team; i < blocks; i += grid_threads() / team) {
    T const* const begin = x + i * block;
    std::size_t const rest = count - i * block;
    double const own = aligned && rest >= block
                           ? block_squares(begin, thread, transpose)
                           : lane_squares(begin, rest < block ? rest : block, thread);
    double const squares = team_sum(own, exchange);
    if (thread != 0) continue;
    ExactSum::Addend const parts = ExactSum::addend(squares);
    add_word(words + parts.first, parts.low);
    add_word(words + parts.first + 1, parts.middle);
    add_word(words + parts.first + 2, parts.high);
  }
  __syncthreads();

  auto* const total = reinterpret_cast<unsigned long long*>(sum->accumulators());
  for (unsigned i = threadIdx.x; i < ExactSum::word_count; i += blockDim.x) {
    add_word(total + i, static_cast<long long>(words[i]));
  }
}

}  // namespace kernels

/// Enqueues sum += Σ x[i]², as MemorySpace says. At most ExactSum::max_pending blocks may be added
/// before the sum is normalized: more elements than any device holds.
/// @par Cost  one pass, in loads of 16 bytes where `x` is aligned to them
template <class T>
void add_squares(Queue const& queue, ExactSum* sum, T const* x, std::size_t count) {
  if (count == 0) return;
  std::size_t const blocks = count / block + (count % block != 0 ? 1 : 0);
  launch_over(queue, "add_squares", blocks * team, kernels::add_squares<T>, sum, x, count);
}

}  // namespace zero::inline ZERO_NAMESPACE::device
