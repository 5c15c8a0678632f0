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

/// Blocks of the norm in so many elements, the last one shorter.
[[nodiscard]] ZERO_HOST_DEVICE constexpr std::size_t blocks_of(std::size_t count) noexcept {
  return count / block + (count % block != 0 ? 1 : 0);
}

/// True for memory that is accessed 16 bytes at once.
[[nodiscard]] inline bool is_aligned(void const* memory) noexcept {
  return reinterpret_cast<std::uintptr_t>(memory) % access_bytes == 0;
}

namespace kernels {

/// Adds a part of a number to a word, in this block's memory or in the device's.
__device__ inline void add_word(unsigned long long* word, long long part) {
  // Two's complement: the same addition as of signed words.
  if (part != 0) atomicAdd(word, static_cast<unsigned long long>(part));
}

/// Adds squares(block, thread, transpose), a lane's sum of squares, over the lanes of each block of
/// the norm, and the blocks exactly. For all threads of a grid.
///
/// Not CUB's reductions: cub::WarpReduce adds lanes in another order than MemorySpace says, and
/// cub::DeviceReduce promises none.
///
/// Eight threads share a block of the norm; blocks are added up in shared memory first, since all
/// of them meet in the same few words.
template <class Squares>
__device__ inline void add_blocks(ExactSum* sum, std::size_t count, Squares const& squares) {
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
  for (std::size_t i = grid_thread() / team; i < blocks_of(count); i += grid_threads() / team) {
    double const whole = team_sum(squares(i, thread, transpose), exchange);
    if (thread != 0) continue;
    ExactSum::Addend const parts = ExactSum::addend(whole);
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

template <class T>
ZERO_KERNEL add_squares(ExactSum* sum, T const* x, std::size_t count) {
  constexpr std::size_t width = access_bytes / sizeof(T);
  bool const aligned = reinterpret_cast<std::uintptr_t>(x) % access_bytes == 0;
  add_blocks(sum, count, [&](std::size_t i, unsigned thread, auto const& transpose) {
    T const* const begin = x + i * block;
    std::size_t const rest = count - i * block;
    if (!aligned || rest < block) {
      return lane_squares(
          [&](std::size_t at) { return begin[at]; }, rest < block ? rest : block, thread);
    }
    return block_squares<T>(
        [&](std::size_t at) { return load<width>(begin, at); }, thread, transpose);
  });
}

}  // namespace kernels

/// add_squares for callers that have made the queue's device current; never throws.
template <class T>
[[nodiscard]] cudaError_t try_add_squares(Queue const& queue,
                                          ExactSum* sum,
                                          T const* x,
                                          std::size_t count) {
  if (count == 0) return cudaSuccess;
  return try_launch_over(queue, blocks_of(count) * team, kernels::add_squares<T>, sum, x, count);
}

/// Enqueues sum += Σ x[i]², as MemorySpace says. At most ExactSum::max_pending blocks may be added
/// before the sum is normalized: more elements than any device holds.
/// @par Cost  one pass, in loads of 16 bytes where `x` is aligned to them
template <class T>
void add_squares(Queue const& queue, ExactSum* sum, T const* x, std::size_t count) {
  Scope const scope(queue.device);
  check(try_add_squares(queue, sum, x, count), "add_squares");
}

}  // namespace zero::inline ZERO_NAMESPACE::device
